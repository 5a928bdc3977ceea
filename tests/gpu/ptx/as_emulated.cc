// Stands in for the emulator where tests of the emulated device run over kernels as PTX: what they
// set there is set here, as far as a PTX machine has it.
#include "kernels/cuda/emulate/emulator.h"
#include "kernels/cuda/emulate/machine.h"
#include "tests/gpu/ptx/cudart.h"

namespace heddle::kernels::cuda::emulate {
namespace {

ptx::MachineOptions Options() {
  // Tests hand out memory of their own.
  ptx::MachineOptions options = ptx::Context::Get().machine().options();
  options.any_address = true;
  return options;
}

// As many as the emulated device has.
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
