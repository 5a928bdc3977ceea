// Gives a program that is linked with the emulated CUDA backend a machine of four GPUs.
#include "tests/emulate/machine.h"

namespace heddle {
namespace {

[[maybe_unused]] const bool kIsSet = [] {
  kernels::cuda::emulate::SetMachine({.device_count = 4});
  return true;
}();

}  // namespace
}  // namespace heddle
