// GPTQ and AWQ: 32-bit words of codes that lie transposed, [inputs, outputs].
// Sources: Frantar et al. 2022 and the layout of AutoGPTQ's and GPTQModel's checkpoints (qweight
// packed along inputs, qzeros along outputs); Lin et al. 2023 and AutoAWQ's "gemm" layout (both
// along outputs, eight columns interleaved).
#include <numeric>
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/integer_matrix.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

// Returns "x." for "x.qweight".
std::string ModuleOf(const CheckpointTensor& tensor, std::string_view suffix) {
  return std::string(tensor.name.substr(0, tensor.name.size() - suffix.size()));
}

// Bits and groups of a layer that may have its own, by the shapes of its scales [n_groups, rows]
// and of its zero points, a row of which has as many bits as codes of all outputs. `options` where
// the shapes do not fit, which is reported later.
PackedOptions OptionsOf(const CheckpointTensor& tensor, const std::string& module,
                        PackedOptions options, bool is_gptq, TensorSet* set) {
  const CheckpointTensor* scales = set->Find(module + "scales");
  const CheckpointTensor* zeros = set->Find(module + "qzeros");
  if (!options.differs || scales == nullptr || zeros == nullptr) return options;
  for (const CheckpointTensor* part : {&tensor, scales, zeros}) {
    if (part->shape.size() != 2 || NumElements(*part) < 1) return options;
  }
  const int64_t bits = zeros->shape[1] * 32 / scales->shape[1];
  if (bits < 1 || bits > 8) return options;
  options.bits = static_cast<int32_t>(bits);
  const int64_t cols = is_gptq ? tensor.shape[0] * 32 / options.bits : tensor.shape[0];
  if (cols % scales->shape[0] == 0) options.group_size = cols / scales->shape[0];
  return options;
}

// qweight [cols * bits / 32, rows], qzeros [n_groups, rows * bits / 32], scales [n_groups, rows].
class GptqMatrix final : public IntegerMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, const PackedOptions& given, TensorSet* set) {
    const std::string module = ModuleOf(tensor, "qweight");
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(tensor, {"I32", "U32"}));
    name = module + "weight";
    const PackedOptions options = OptionsOf(tensor, module, given, /*is_gptq=*/true, set);
    bits_ = options.bits;
    if (tensor.shape.size() != 2 || bits_ < 2 || bits_ > 8) {
      return set->Error(tensor, base::StrCat("has ", tensor.shape.size(), " dimensions and ", bits_,
                                             " bits; expected 2 dimensions and 2, 3, 4 or 8 bits"));
    }
    rows = tensor.shape[1];
    cols = tensor.shape[0] * 32 / bits_;
    if (cols < 1 || rows < 1 || cols * bits_ != tensor.shape[0] * 32 || rows * bits_ % 32 != 0) {
      return set->Error(tensor, base::StrCat("has shape [", tensor.shape[0], ", ", rows,
                                             "], which whole words of ", bits_,
                                             "-bit codes and zero points do not give"));
    }
    group_ = options.group_size < 1 ? cols : options.group_size;
    if (cols % group_ != 0) return Finish(tensor, "GPTQ", *set);  // reports the error
    const int64_t n_groups = cols / group_;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                            set->NeedFloats(tensor, module + "scales"));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*scales, {n_groups, rows}, "groups, outputs"));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* zeros,
                            set->Need(tensor, module + "qzeros", {"I32", "U32"}));
    HEDDLE_RETURN_IF_ERROR(
        set->ExpectShape(*zeros, {n_groups, rows * bits_ / 32}, "groups, packed outputs"));
    code_bytes = tensor.data;
    zeros_ = zeros->data;
    scales_ = FloatView(*scales);
    added_to_zero_ = options.zeros_are_one_less ? 1 : 0;
    HEDDLE_RETURN_IF_ERROR(ReadOrder(module + "g_idx", set));
    return Finish(tensor, "GPTQ", *set);
  }

 private:
  absl::Status ReadOrder(const std::string& order_name, TensorSet* set) {
    const CheckpointTensor* order = set->Find(order_name);
    if (order == nullptr) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(*order, {"I32"}));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*order, {cols}, "inputs"));
    std::vector<int32_t> groups(static_cast<size_t>(cols));
    std::memcpy(groups.data(), order->data.data(), order->data.size());
    return SetOrder(*order, groups, *set);
  }

  void Codes(int64_t begin, int64_t count, uint8_t* out) const override {
    CodesOf(
        count, [begin](int64_t i) { return begin + i; }, out);
  }
  void PickCodes(std::span<const int32_t> picked, uint8_t* out) const override {
    CodesOf(
        static_cast<int64_t>(picked.size()),
        [picked](int64_t i) -> int64_t { return picked[static_cast<size_t>(i)]; }, out);
  }
  template <typename RowAt>
  void CodesOf(int64_t count, const RowAt& row_at, uint8_t* out) const {
    if (bits_ == 4) return UnpackWords<4>(count, row_at, out);
    if (bits_ == 8) return UnpackWords<8>(count, row_at, out);
    if (bits_ == 2) return UnpackWords<2>(count, row_at, out);
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < count; ++r) {
        out[r * cols + c] =
            static_cast<uint8_t>(StreamElement(code_bytes.data() + row_at(r) * 4, rows, c, bits_));
      }
    }
  }
  // Words have whole codes of one output: each is read once, and all its codes lie side by side.
  template <int32_t kBits, typename RowAt>
  void UnpackWords(int64_t count, const RowAt& row_at, uint8_t* out) const {
    constexpr int64_t kPerWord = 32 / kBits;
    for (int64_t first = 0; first < cols; first += kPerWord) {
      const std::byte* line = code_bytes.data() + first / kPerWord * rows * 4;
      for (int64_t r = 0; r < count; ++r) {
        uint32_t word;
        std::memcpy(&word, line + row_at(r) * 4, 4);
        uint8_t* codes = out + r * cols + first;
        for (int32_t i = 0; i < kPerWord; ++i) {
          codes[i] = static_cast<uint8_t>((word >> (i * kBits)) & ((1u << kBits) - 1));
        }
      }
    }
  }
  float Scale(int64_t row, int64_t group) const override { return scales_[group * rows + row]; }
  int32_t Zero(int64_t row, int64_t group) const override {
    const std::byte* words = zeros_.data() + group * (rows * bits_ / 32) * 4;
    const uint32_t stored = StreamElement(words, 1, row, bits_);
    return static_cast<int32_t>((stored + added_to_zero_) & ((1u << bits_) - 1));
  }

  std::span<const std::byte> zeros_;
  FloatView scales_;
  uint32_t added_to_zero_ = 1;
};

// qweight [cols, rows / 8], qzeros [n_groups, rows / 8], scales [n_groups, rows].
class AwqMatrix final : public IntegerMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, const PackedOptions& given, TensorSet* set) {
    const std::string module = ModuleOf(tensor, "qweight");
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(tensor, {"I32", "U32"}));
    name = module + "weight";
    const PackedOptions options = OptionsOf(tensor, module, given, /*is_gptq=*/false, set);
    if (tensor.shape.size() != 2 || options.bits != 4) {
      return set->Error(tensor, base::StrCat("has ", tensor.shape.size(), " dimensions and ",
                                             options.bits, " bits; AWQ has 2 and 4"));
    }
    bits_ = 4;
    rows = tensor.shape[1] * 8;
    cols = tensor.shape[0];
    group_ = options.group_size < 1 ? cols : options.group_size;
    if (cols < 1 || cols % group_ != 0) return Finish(tensor, "AWQ", *set);  // reports the error
    const int64_t n_groups = cols / group_;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                            set->NeedFloats(tensor, module + "scales"));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*scales, {n_groups, rows}, "groups, outputs"));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* zeros,
                            set->Need(tensor, module + "qzeros", {"I32", "U32"}));
    HEDDLE_RETURN_IF_ERROR(
        set->ExpectShape(*zeros, {n_groups, rows / 8}, "groups, packed outputs"));
    code_bytes = tensor.data;
    zeros_ = zeros->data;
    scales_ = FloatView(*scales);
    return Finish(tensor, "AWQ", *set);
  }

 private:
  // The shift of the nibble that holds output `row` of its word: outputs are stored in the order 0,
  // 2, 4, 6, 1, 3, 5, 7.
  static int32_t ShiftOf(int64_t row) {
    const auto in_word = static_cast<int32_t>(row % 8);
    return 4 * (in_word % 2 * 4 + in_word / 2);
  }
  uint32_t At(std::span<const std::byte> words, int64_t line, int64_t row) const {
    uint32_t word;
    std::memcpy(&word, words.data() + (line * (rows / 8) + row / 8) * 4, 4);
    return (word >> ShiftOf(row)) & 15;
  }

  void Codes(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < count; ++r) {
        out[r * cols + c] = static_cast<uint8_t>(At(code_bytes, c, begin + r));
      }
    }
  }
  float Scale(int64_t row, int64_t group) const override { return scales_[group * rows + row]; }
  int32_t Zero(int64_t row, int64_t group) const override {
    return static_cast<int32_t>(At(zeros_, group, row));
  }

  std::span<const std::byte> zeros_;
  FloatView scales_;
};

template <typename Matrix>
MatrixOr Make(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
  auto matrix = std::make_unique<Matrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, options, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace

MatrixOr ReadGptq(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
  return Make<GptqMatrix>(tensor, options, set);
}

MatrixOr ReadAwq(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set) {
  return Make<AwqMatrix>(tensor, options, set);
}

}  // namespace heddle::engine
