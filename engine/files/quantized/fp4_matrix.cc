// 4-bit floats (E2M1), two to a byte, the first in the low nibble. NVFP4: an E4M3 scale for each 16
// columns, and an F32 for the matrix that multiplies (weight_scale_2) or divides
// (weight_global_scale). MXFP4: a power of two for each 32 columns.
// Sources: the checkpoints of NVIDIA's TensorRT Model Optimizer; compressed-tensors
// ("nvfp4-pack-quantized", "mxfp4-pack-quantized"); OCP Microscaling Formats 1.0.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

using kernels::DType;

constexpr int64_t kSuperblock = 64;  // columns of kNVFP4
constexpr int64_t kGroup = 16;       // columns that share an E4M3 scale
constexpr int64_t kPowerGroup = 32;  // columns that share a power of two, a block of kMXFP4
constexpr std::string_view kPacked = "_packed";
constexpr std::string_view kWeight = ".weight";

// Moves the codes of 32 columns to the order of Q4_0, where byte j holds columns j and j + 16.
void RepackNibbles(const uint8_t* from, uint8_t* to) {
  auto code = [from](int column) { return (from[column / 2] >> (4 * (column % 2))) & 15; };
  for (int j = 0; j < 16; ++j) to[j] = static_cast<uint8_t>(code(j) | code(j + 16) << 4);
}

class Fp4Matrix final : public QuantizedMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, TensorSet* set) {
    name = tensor.name;
    if (tensor.name.ends_with(kPacked)) name.resize(name.size() - kPacked.size());
    if (tensor.shape.size() != 2 || NumElements(tensor) < 1) {
      return set->Error(tensor, "is quantised, but no matrix");
    }
    rows = tensor.shape[0];
    cols = tensor.shape[1] * 2;
    code_bytes = tensor.data;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                            set->Need(tensor, name + "_scale", {"F8_E4M3", "U8", "F8_E8M0"}));
    is_nvfp4_ = scales->type_name == "F8_E4M3";
    const int64_t group = is_nvfp4_ ? kGroup : kPowerGroup;
    const int64_t whole = is_nvfp4_ ? kSuperblock : kPowerGroup;
    if (cols % whole != 0) {
      return set->Error(tensor,
                        base::StrCat("has ", cols, " columns; supported are whole ", whole));
    }
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*scales, {rows, cols / group},
                                            base::StrCat("rows, groups of ", group, " columns")));
    scales_ = scales->data;
    nan_ = set->Error(*scales, "holds NaN");
    dtype = is_nvfp4_ ? DType::kNVFP4 : DType::kMXFP4;
    type_name = is_nvfp4_ ? "NVFP4" : "MXFP4";
    return is_nvfp4_ ? ReadFactor(tensor, set) : absl::OkStatus();
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    const int64_t first = begin * cols;
    const auto* codes = reinterpret_cast<const uint8_t*>(code_bytes.data());
    const auto* scales = reinterpret_cast<const uint8_t*>(scales_.data());
    for (int64_t at = first; at < first + count * cols;) {
      if (is_nvfp4_) {
        std::memcpy(out, &factor_, 4);
        std::memcpy(out + 4, scales + at / kGroup, 4);
        out += 8;
        for (const int64_t end = at + kSuperblock; at < end; at += 32, out += 16) {
          RepackNibbles(codes + at / 2, out);
        }
      } else {
        *out++ = scales[at / kPowerGroup];
        RepackNibbles(codes + at / 2, out);
        at += kPowerGroup;
        out += 16;
      }
    }
  }

  absl::Status CheckCodes() const override {
    const int nan = is_nvfp4_ ? 0x7f : 0xff;
    const bool has_nan = std::any_of(scales_.begin(), scales_.end(), [&](std::byte scale) {
      return (std::to_integer<int>(scale) & nan) == nan;
    });
    return has_nan ? nan_ : absl::OkStatus();
  }

 private:
  absl::Status ReadFactor(const CheckpointTensor& tensor, TensorSet* set) {
    const CheckpointTensor* factor = set->Find(name + "_scale_2");
    const bool divides = factor == nullptr;
    const std::string factor_name = name + (divides ? "_global_scale" : "_scale_2");
    HEDDLE_ASSIGN_OR_RETURN(factor, set->NeedFloats(tensor, factor_name));
    if (NumElements(*factor) != 1) return set->ExpectShape(*factor, {1}, "one for the matrix");
    const float value = FloatView(*factor)[0];
    factor_ = divides ? 1.0f / value : value;
    if (std::isfinite(value) && std::isfinite(factor_) && factor_ > 0) return absl::OkStatus();
    return set->Error(*factor, base::StrCat("is ", value, ", expected a positive scale"));
  }

  bool is_nvfp4_ = false;
  float factor_ = 1;
  std::span<const std::byte> scales_;
  absl::Status nan_;
};

// GGUF's NVFP4: per 64 columns four E4M3 scales without their sign, then for each 16 columns 8
// bytes, of which byte j holds columns j and j + 8. The matrix' F32 is a tensor of its own, with
// one number for each expert of stacked matrices; without it, it is 1. Source: gguf's dequantiser
// and llama.cpp's converter.
class GgufNvfp4 final : public QuantizedMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, TensorSet* set) {
    name = tensor.name;
    type_name = tensor.type_name;
    dtype = DType::kNVFP4;
    cols = tensor.shape.back();
    rows = NumElements(tensor) / cols;
    code_bytes = tensor.data;
    rows_of_scale_ = rows;
    const std::string module = name.substr(0, name.size() - kWeight.size());
    set->Find(module + ".input_scale");
    const CheckpointTensor* scales = set->Find(module + ".scale");
    if (scales == nullptr) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(*scales, {"F32"}));
    const int64_t count = tensor.shape.size() == 3 ? tensor.shape[0] : 1;
    if (NumElements(*scales) != 1) {
      HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*scales, {count}, "one for each matrix"));
      rows_of_scale_ = rows / count;
    }
    scales_ = FloatView(*scales);
    has_scales_ = true;
    for (int64_t i = 0; i < NumElements(*scales); ++i) {
      if (std::isfinite(scales_[i])) continue;
      return set->Error(*scales, base::StrCat("holds ", scales_[i]));
    }
    return absl::OkStatus();
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    constexpr int64_t kBytes = 36;
    const auto* from =
        reinterpret_cast<const uint8_t*>(code_bytes.data()) + begin * (cols / kSuperblock) * kBytes;
    for (int64_t r = begin; r < begin + count; ++r) {
      const float factor = has_scales_ ? scales_[r / rows_of_scale_] : 1.0f;
      for (int64_t k = 0; k < cols; k += kSuperblock, from += kBytes, out += 40) {
        std::memcpy(out, &factor, 4);
        // All bits set are no NaN there, but zero.
        for (int s = 0; s < 4; ++s) out[4 + s] = (from[s] & 0x7f) == 0x7f ? 0 : from[s] & 0x7f;
        Repack(from + 4, out + 8);
        Repack(from + 20, out + 24);
      }
    }
  }

 private:
  // The codes of 32 columns, from two runs of 16.
  static void Repack(const uint8_t* from, uint8_t* to) {
    for (int j = 0; j < 8; ++j) {
      to[j] = static_cast<uint8_t>((from[j] & 15) | (from[8 + j] & 15) << 4);
      to[8 + j] = static_cast<uint8_t>(from[j] >> 4 | (from[8 + j] & 0xf0));
    }
  }

  int64_t rows_of_scale_ = 1;
  bool has_scales_ = false;
  FloatView scales_;
};

}  // namespace

MatrixOr ReadFp4(const CheckpointTensor& tensor, TensorSet* set) {
  auto matrix = std::make_unique<Fp4Matrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

MatrixOr ReadGgufNvfp4(const CheckpointTensor& tensor, TensorSet* set) {
  auto matrix = std::make_unique<GgufNvfp4>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace heddle::engine
