// AWQ for kernels of single rows. "gemv": qweight [rows, cols / 8], qzeros [rows, words] and scales
// [rows, 8 words], whose words are padded; codes are in their natural order. "gemv_fast": qweight
// [rows / 4, cols] of 16-bit words, scales and qzeros or scaled_zeros [8 words, rows] in F16, of
// which the latter is added.
// Source: Lin et al. 2023, and the packing of AutoAWQ's checkpoints.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/integer_matrix.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

// Returns "x." for "x.qweight".
std::string GemvModuleOf(const CheckpointTensor& tensor) {
  return std::string(tensor.name.substr(0, tensor.name.size() - 7));
}

absl::Status CheckShape(const CheckpointTensor& tensor, const PackedOptions& options,
                        const TensorSet& set) {
  if (tensor.shape.size() == 2 && NumElements(tensor) >= 1 && options.bits == 4) {
    return absl::OkStatus();
  }
  return set.Error(tensor, base::StrCat("has ", tensor.shape.size(), " dimensions and ",
                                        options.bits, " bits; AWQ has 2 and 4"));
}

class GemvMatrix final : public IntegerMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
    const std::string module = GemvModuleOf(tensor);
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(tensor, {"I32", "U32"}));
    HEDDLE_RETURN_IF_ERROR(CheckShape(tensor, options, *set));
    name = module + "weight";
    rows = tensor.shape[0];
    cols = tensor.shape[1] * 8;
    bits_ = 4;
    group_ = options.group_size < 1 ? cols : options.group_size;
    HEDDLE_RETURN_IF_ERROR(Finish(tensor, "AWQ", *set));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* zeros,
                            set->Need(tensor, module + "qzeros", {"I32", "U32"}));
    zero_words_ = zeros->shape.size() == 2 ? zeros->shape[1] : 0;
    if (zero_words_ * 8 < cols / group_) zero_words_ = (cols / group_ + 7) / 8;
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*zeros, {rows, zero_words_}, "outputs, packed groups"));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                            set->NeedFloats(tensor, module + "scales"));
    HEDDLE_RETURN_IF_ERROR(
        set->ExpectShape(*scales, {rows, zero_words_ * 8}, "outputs, groups as in the zeros"));
    code_bytes = tensor.data;
    zeros_ = zeros->data;
    scales_ = FloatView(*scales);
    return absl::OkStatus();
  }

 private:
  void Codes(int64_t begin, int64_t count, uint8_t* out) const override {
    const std::byte* words = code_bytes.data() + begin * cols / 2;
    for (int64_t i = 0; i < count * cols; ++i) {
      out[i] = static_cast<uint8_t>(StreamElement(words, 1, i, 4));
    }
  }
  float Scale(int64_t row, int64_t group) const override {
    return scales_[row * zero_words_ * 8 + group];
  }
  int32_t Zero(int64_t row, int64_t group) const override {
    return static_cast<int32_t>(StreamElement(zeros_.data() + row * zero_words_ * 4, 1, group, 4));
  }

  int64_t zero_words_ = 0;  // per row
  std::span<const std::byte> zeros_;
  FloatView scales_;
};

// Rows of Q4_1, whose offset is the scaled zero point: it was rounded to F16, so that no integer
// gives the same values.
class GemvFastMatrix final : public QuantizedMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
    const std::string module = GemvModuleOf(tensor);
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(tensor, {"I16", "U16"}));
    HEDDLE_RETURN_IF_ERROR(CheckShape(tensor, options, *set));
    name = module + "weight";
    rows = tensor.shape[0] * kInterleaved;
    cols = tensor.shape[1];
    group_ = options.group_size < 1 ? cols : options.group_size;
    if (cols % kRun != 0 || cols % group_ != 0 || group_ % 32 != 0) {
      return set->Error(tensor, base::StrCat("has ", cols, " columns and groups of ", group_,
                                             "; supported are whole ", kRun,
                                             " columns and groups of whole 32 that divide them"));
    }
    HEDDLE_ASSIGN_OR_RETURN(scales_, ReadHalves(tensor, module + "scales", set));
    // Some versions call them scaled_zeros.
    const bool is_scaled = set->Find(module + "scaled_zeros") != nullptr;
    HEDDLE_ASSIGN_OR_RETURN(
        offsets_, ReadHalves(tensor, module + (is_scaled ? "scaled_zeros" : "qzeros"), set));
    code_bytes = tensor.data;
    dtype = kernels::DType::kQ4_1;
    type_name = base::StrCat("AWQ int4, groups of ", group_, ", offsets");
    return absl::OkStatus();
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t r = begin; r < begin + count; ++r) {
      for (int64_t k = 0; k < cols; k += 32, out += 20) {
        const size_t at = static_cast<size_t>(k / group_ * rows + r) * 2;
        std::memcpy(out, scales_.data() + at, 2);
        std::memcpy(out + 2, offsets_.data() + at, 2);
        for (int64_t j = 0; j < 16; ++j) {
          out[4 + j] = static_cast<uint8_t>(Code(r, k + j) | Code(r, k + j + 16) << 4);
        }
      }
    }
  }

 private:
  static constexpr int64_t kInterleaved = 4;  // rows that share lines of words
  static constexpr int64_t kRun = 64;         // columns before the next of these rows follows

  // F16 for each group and output; there may be more groups, which pad the words of zero points.
  absl::StatusOr<std::span<const std::byte>> ReadHalves(const CheckpointTensor& tensor,
                                                        const std::string& part, TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* found, set->Need(tensor, part, {"F16"}));
    if (lines_ == 0 && found->shape.size() == 2) lines_ = std::max(found->shape[0], cols / group_);
    HEDDLE_RETURN_IF_ERROR(
        set->ExpectShape(*found, {lines_, rows}, "groups, as in the scales, and outputs"));
    return found->data;
  }

  // Column 8 a + 2 b + c of each 32 lies at 8 b + 4 c + a; four neighbours make a word.
  int Code(int64_t row, int64_t column) const {
    const int64_t within = column % 32;
    const int64_t place = within / 2 % 4 * 8 + within % 2 * 4 + within / 8;
    const int64_t in_run = row % kInterleaved * kRun + column % kRun / 32 * 32 + place;
    const int64_t nibble =
        (row / kInterleaved * cols + column / kRun * kRun) * kInterleaved + in_run;
    const auto pair = std::to_integer<int>(code_bytes[static_cast<size_t>(nibble / 2)]);
    return nibble % 2 == 0 ? pair & 15 : pair >> 4;
  }

  int64_t group_ = 0;
  int64_t lines_ = 0;  // of scales and offsets
  std::span<const std::byte> scales_;
  std::span<const std::byte> offsets_;
};

template <typename Matrix>
MatrixOr MakeGemv(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
  auto matrix = std::make_unique<Matrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, options, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace

MatrixOr ReadAwqGemv(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
  return MakeGemv<GemvMatrix>(tensor, options, set);
}

MatrixOr ReadAwqGemvFast(const CheckpointTensor& tensor, const PackedOptions& options,
                         TensorSet* set) {
  return MakeGemv<GemvFastMatrix>(tensor, options, set);
}

}  // namespace heddle::engine
