// Stands in for the emulator when tests of the emulated device run kernels as PTX: settings of the
// tests are applied to the PTX machine as far as it has them.
#include "kernels/cuda/linear/library_matmul.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/gpu/ptx/bulk_copies.h"
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

Machine current;

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
  current = machine;
  ptx::Context::Get().device = {machine.compute_major, machine.compute_minor, kMultiprocessors,
                                machine.has_code};
  ptx::Context::Get().machine().set_options(Options());
}

std::vector<std::string> TakeFindings() { return {}; }

int64_t TileCopies() { return ptx::TensorCopies(); }

const Machine& CurrentMachine() { return current; }

}  // namespace heddle::kernels::cuda::emulate

// In place of kernels/cuda/linear/library_matmul.cc, which the linker then leaves out: a library
// that would take codes and has no product, so that kernels of codes run where one is asked for.
namespace heddle::kernels::cuda {
namespace {

class NoProducts final : public LibraryMatmul {
 public:
  explicit NoProducts(const emulate::Machine& machine) : machine_(machine) {}
  std::string name() const override { return "a library without products"; }
  bool Multiply(const LinearParams&, Stream) override { return false; }
  bool TakesCodes(const DeviceWeight& weight) const override {
    const bool is_f8 =
        weight.layout == WeightLayout::kF8Row || weight.layout == WeightLayout::kF8Block;
    return is_f8 && weight.rows % 16 == 0 && machine_.compute_major == 9 && machine_.scales_rows;
  }
  bool MultiplyCodes(const CodeProduct&, Stream) override { return false; }
  bool SumCodes(const CodeProduct&, Stream) override { return false; }
  void SpareMultiprocessors(int32_t) override {}

 private:
  const emulate::Machine machine_;  // on which it was opened
};

}  // namespace

absl::StatusOr<std::unique_ptr<LibraryMatmul>> LibraryMatmul::Open(Runtime&) {
  if (!emulate::CurrentMachine().has_library) {
    return absl::NotFoundError("there is no cuBLASLt for PTX machines");
  }
  return std::make_unique<NoProducts>(emulate::CurrentMachine());
}

}  // namespace heddle::kernels::cuda
