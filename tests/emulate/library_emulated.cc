// Replaces cuBLASLt on the emulated machine, if it has the library: plain loops with the same
// arithmetic and the same requirements.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/dtype.h"
#include "tests/emulate/elements.h"
#include "tests/emulate/machine.h"

namespace heddle::kernels::cuda {
namespace {

bool IsAligned(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

class EmulatedLibrary final : public LibraryMatmul {
 public:
  EmulatedLibrary(const DeviceInfo& info, const emulate::Machine& machine)
      : has_f8_(info.major * 10 + info.minor >= 89),
        has_tiles_(info.major == 9 && machine.scales_rows),
        scales_rows_(machine.scales_rows),
        has_products_(machine.has_products),
        has_codes_(machine.has_codes) {}

  std::string name() const override { return "emulated library"; }

  void SpareMultiprocessors(int32_t) override {}

  bool Multiply(const LinearParams& p, Stream queue) override {
    if (!has_products_) return false;
    emulate::CatchUp(queue);
    const bool adds = p.epilogue == Epilogue::kAdd;
    for (int64_t t = 0; t < p.x.rows; ++t) {
      for (int64_t r = 0; r < p.weight.rows; ++r) {
        const auto* w = reinterpret_cast<const uint16_t*>(p.weight.data + r * p.weight.row_bytes);
        float sum = 0;
        for (int64_t k = 0; k < p.weight.cols; ++k) {
          sum += emulate::ValueOfBF16(p.x.row<uint16_t>(t)[k]) * emulate::ValueOfBF16(w[k]);
        }
        Store(p.out, p.out_f32, adds, t, r, sum);
      }
    }
    return true;
  }

  bool TakesCodes(const DeviceWeight& weight) const override {
    if (weight.rows % 16 != 0) return false;
    return weight.layout == WeightLayout::kInt8Row ||
           (weight.layout == WeightLayout::kF8Row && has_f8_) ||
           (weight.layout == WeightLayout::kF8Block && has_tiles_);
  }

  bool MultiplyCodes(const CodeProduct& p, Stream queue) override {
    if (!has_codes_ || !scales_rows_ || !IsF8(p.weight.layout)) return false;
    emulate::CatchUp(queue);
    Check(p);
    const bool tiled = p.weight.layout == WeightLayout::kF8Block;
    for (int64_t t = 0; t < p.n; ++t) {
      for (int64_t r = 0; r < p.weight.rows; ++r) {
        Store(p.out, p.out_f32, p.adds, t, r, tiled ? TiledSum(p, t, r) : ScaledSum(p, t, r));
      }
    }
    return true;
  }

  bool SumCodes(const CodeProduct& p, Stream queue) override {
    if (!has_codes_ || p.weight.layout == WeightLayout::kF8Block) return false;
    emulate::CatchUp(queue);
    Check(p);
    for (int64_t t = 0; t < p.n; ++t) {
      for (int64_t r = 0; r < p.weight.rows; ++r) {
        if (IsF8(p.weight.layout)) {
          p.out.row<float>(t)[r] = SumF8(p, t, r, 0, p.weight.row_bytes);
        } else {
          p.out.row<int32_t>(t)[r] = SumInt8(p, t, r);
        }
      }
    }
    return true;
  }

 private:
  static void Check(const CodeProduct& p) {
    HEDDLE_CHECK(p.weight.rows % 16 == 0 && p.weight.row_bytes % 16 == 0 &&
                     p.x.row_bytes == p.weight.row_bytes,
                 "codes: shapes that the library does not take");
    HEDDLE_CHECK(
        IsAligned(p.weight.data, p.weight.row_bytes) && IsAligned(p.x.codes, p.x.row_bytes),
        "codes: not aligned");
    if (p.weight.layout != WeightLayout::kF8Block) return;
    HEDDLE_CHECK(
        p.n % kTiledRows == 0 && p.x.scales_stride == p.n && p.weight.tiles_stride % 4 == 0,
        "codes: scales of tiles in strides that the library does not take");
    HEDDLE_CHECK(IsAligned(p.weight.tile_scales, 0) && IsAligned(p.x.scales, 0),
                 "codes: scales of tiles are not aligned");
  }

  // Sums the products of columns [begin, end).
  static float SumF8(const CodeProduct& p, int64_t t, int64_t r, int64_t begin, int64_t end) {
    const uint8_t* x = p.x.codes + t * p.x.row_bytes;
    const uint8_t* w = p.weight.data + r * p.weight.row_bytes;
    float sum = 0;
    for (int64_t k = begin; k < end; ++k)
      sum += emulate::ValueOfF8(x[k]) * emulate::ValueOfF8(w[k]);
    return sum;
  }

  static float ScaledSum(const CodeProduct& p, int64_t t, int64_t r) {
    return SumF8(p, t, r, 0, p.weight.row_bytes) * (p.x.scales[t] * p.weight.row_factors[r]);
  }

  static float TiledSum(const CodeProduct& p, int64_t t, int64_t r) {
    float sum = 0;
    for (int64_t begin = 0; begin < p.weight.row_bytes; begin += kScaleTile) {
      const int64_t tile = begin / kScaleTile;
      const float scale = p.x.scales[tile * p.x.scales_stride + t] * p.weight.tiles_of(r)[tile];
      sum += SumF8(p, t, r, begin, std::min(begin + kScaleTile, p.weight.row_bytes)) * scale;
    }
    return sum;
  }

  static int32_t SumInt8(const CodeProduct& p, int64_t t, int64_t r) {
    const auto* x = reinterpret_cast<const int8_t*>(p.x.codes + t * p.x.row_bytes);
    const auto* w = reinterpret_cast<const int8_t*>(p.weight.data + r * p.weight.row_bytes);
    int32_t sum = 0;
    for (int64_t k = 0; k < p.weight.row_bytes; ++k) sum += int32_t{x[k]} * w[k];
    return sum;
  }

  static void Store(const Tensor& to, bool f32, bool adds, int64_t t, int64_t r, float sum) {
    if (f32) {
      float& out = to.row<float>(t)[r];
      out = adds ? out + sum : sum;
    } else {
      uint16_t& out = to.row<uint16_t>(t)[r];
      out = F32ToBF16(adds ? BF16ToF32(out) + sum : sum);
    }
  }

  const bool has_f8_;
  const bool has_tiles_;
  const bool scales_rows_;
  const bool has_products_;
  const bool has_codes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LibraryMatmul>> LibraryMatmul::Open(Runtime& runtime) {
  const emulate::Machine& machine = emulate::CurrentMachine();
  if (!machine.has_library) return absl::NotFoundError("this machine has no cuBLASLt");
  return std::make_unique<EmulatedLibrary>(runtime.info(), machine);
}

}  // namespace heddle::kernels::cuda
