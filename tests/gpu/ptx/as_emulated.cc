// Stands in for the emulator when tests of the emulated device run kernels as PTX: settings of the
// tests are applied to the PTX machine as far as it has them.
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/gpu/ptx/cudart.h"

namespace heddle::kernels::cuda::emulate {
namespace {

ptx::MachineOptions Options() {
  // Tests hand out memory of their own.
  ptx::MachineOptions options = ptx::Context::Get().machine().options();
  options.any_address = true;
  return options;
}

// The same number as the emulated device's.
constexpr int kMultiprocessors = 6;

const bool kIsSet = [] {
  SetMachine({});
  return true;
}();

}  // namespace

void SetOrder(Order order) {
  ptx::MachineOptions options = Options();
  options.backward = order == Order::kBackward;
  ptx::Context::Get().machine().set_options(options);
}

void SetMachine(const Machine& machine) {
  ptx::Context::Get().device = {machine.compute_major, machine.compute_minor, kMultiprocessors,
                                machine.has_code};
  ptx::Context::Get().machine().set_options(Options());
}

std::vector<std::string> TakeFindings() { return {}; }

}  // namespace heddle::kernels::cuda::emulate
