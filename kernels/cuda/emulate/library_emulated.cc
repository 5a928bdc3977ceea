// In cuBLASLt's place on the emulated machine: plain loops, where the machine has a library.
#include "kernels/cuda/emulate/machine.h"
#include "kernels/cuda/library_matmul.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cuda {
namespace {

class EmulatedLibrary final : public LibraryMatmul {
 public:
  std::string name() const override { return "emulated library"; }

  void SpareMultiprocessors(int32_t) override {}

  bool Multiply(const LinearParams& p, Stream) override {
    for (int64_t t = 0; t < p.x.rows; ++t) {
      for (int64_t r = 0; r < p.weight.rows; ++r) {
        const auto* w = reinterpret_cast<const uint16_t*>(p.weight.data + r * p.weight.row_bytes);
        float sum = 0;
        for (int64_t k = 0; k < p.weight.cols; ++k) {
          sum += BF16ToF32(p.x.row<uint16_t>(t)[k]) * BF16ToF32(w[k]);
        }
        Store(p, t, r, sum);
      }
    }
    return true;
  }

 private:
  static void Store(const LinearParams& p, int64_t t, int64_t r, float sum) {
    const bool adds = p.epilogue == Epilogue::kAdd;
    if (p.out_f32) {
      float& out = p.out.row<float>(t)[r];
      out = adds ? out + sum : sum;
    } else {
      uint16_t& out = p.out.row<uint16_t>(t)[r];
      out = F32ToBF16(adds ? BF16ToF32(out) + sum : sum);
    }
  }
};

}  // namespace

std::unique_ptr<LibraryMatmul> LibraryMatmul::Open(Runtime&) {
  if (!emulate::HasLibrary()) return nullptr;
  return std::make_unique<EmulatedLibrary>();
}

}  // namespace heddle::kernels::cuda
