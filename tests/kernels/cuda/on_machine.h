// The emulated machine of a test; the usual one again when its scope ends.
#pragma once

#include "tests/emulate/machine.h"

namespace heddle::kernels::test {

struct OnMachine {
  explicit OnMachine(const cuda::emulate::Machine& machine) { cuda::emulate::SetMachine(machine); }
  ~OnMachine() { cuda::emulate::SetMachine({}); }
  OnMachine(const OnMachine&) = delete;
  OnMachine& operator=(const OnMachine&) = delete;
};

}  // namespace heddle::kernels::test
