// Matrices of plain 8-bit integers or 8-bit floats (E4M3) with scales for the whole tensor, each
// row, groups of columns, or rectangular blocks.
// Sources: compressed-tensors ("int-quantized", "float-quantized", "mxfp8-quantized");
// transformers' fine-grained FP8 ("weight_scale_inv", as DeepSeek-V3 brought it) and FBGEMM FP8;
// NVIDIA's TensorRT Model Optimizer (FP8, MXFP8); Dettmers et al. 2022 (LLM.int8) and bitsandbytes
// ("SCB").
#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/integer_matrix.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

using kernels::DType;

// Maps elements to their scales.
struct ScaleGrid {
  FloatView scales;
  std::span<const std::byte> powers;  // the scales, where they are powers of two
  int64_t row_block = 1;              // rows that share a scale
  int64_t column_block = 1;           // columns that share a scale
  int64_t stride = 1;                 // scales per row of blocks
  float factor = 1;                   // of all scales
  std::string words;                  // "scales per row"

  float At(int64_t row, int64_t column_block_index) const {
    return scales[row / row_block * stride + column_block_index] * factor;
  }
};

int64_t Blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

// The scales that belong to a matrix of codes: floats, or for E4M3 also powers of two.
absl::StatusOr<const CheckpointTensor*> FindScales(const CheckpointTensor& tensor, TensorSet* set) {
  const std::string weight(tensor.name);
  const bool is_inverse = set->Find(weight + "_scale_inv") != nullptr;
  const std::string name = weight + (is_inverse ? "_scale_inv" : "_scale");
  if (tensor.type_name == "I8") return set->NeedFloats(tensor, name);
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                          set->Need(tensor, name, {"F32", "F16", "BF16", "F8_E8M0", "U8"}));
  // Bytes stand for powers of two in MXFP8 alone.
  if (scales->type_name != "U8") return scales;
  HEDDLE_RETURN_IF_ERROR(
      set->ExpectShape(*scales, {tensor.shape[0], tensor.shape[1] / 32}, "rows, groups of 32"));
  return scales;
}

// Without the dimensions of 1 that stand for a block's inside: [rows, 1, columns, 1].
std::vector<int64_t> PlainShape(const std::vector<int64_t>& shape) {
  if (shape.size() != 4 || shape[1] != 1 || shape[3] != 1) return shape;
  return {shape[0], shape[2]};
}

absl::StatusOr<ScaleGrid> ReadGrid(const CheckpointTensor& tensor, BlockShape block,
                                   TensorSet* set) {
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* found, FindScales(tensor, set));
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  const std::vector<int64_t> shape = PlainShape(found->shape);
  ScaleGrid grid{.scales = FloatView(*found)};
  if (found->type_name == "F8_E8M0" || found->type_name == "U8") grid.powers = found->data;
  if (NumElements(*found) == 1) {
    grid.row_block = rows;
    grid.column_block = cols;
    grid.words = "one scale";
  } else if (shape == std::vector<int64_t>{rows} || shape == std::vector<int64_t>{rows, 1}) {
    grid.column_block = cols;
    grid.words = "scales per row";
  } else if (shape.size() == 2 && shape[0] == rows && shape[1] > 0 && cols % shape[1] == 0) {
    grid.column_block = cols / shape[1];
    grid.stride = shape[1];
    grid.words = base::StrCat("groups of ", grid.column_block);
  } else if (shape == std::vector<int64_t>{Blocks(rows, block.rows), Blocks(cols, block.columns)}) {
    grid.row_block = block.rows;
    grid.column_block = block.columns;
    grid.stride = shape[1];
    grid.words = base::StrCat("blocks of ", block.rows, "x", block.columns);
  } else {
    return set->Error(*found, base::StrCat("has shape [", absl::StrJoin(shape, ", "),
                                           "], which gives a matrix of [", rows, ", ", cols,
                                           "] no scale per tensor, row, group or block of ",
                                           block.rows, "x", block.columns));
  }
  return grid;
}

class ScaledInt8 final : public IntegerMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, BlockShape block, TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(ScaleGrid grid, ReadGrid(tensor, block, set));
    return InitWith(std::move(grid), "compressed-tensors", tensor, set);
  }

  absl::Status InitWith(ScaleGrid grid, std::string_view method, const CheckpointTensor& tensor,
                        TensorSet* set) {
    grid_ = std::move(grid);
    name = tensor.name;
    code_bytes = tensor.data;
    rows = tensor.shape[0];
    cols = tensor.shape[1];
    bits_ = 8;
    group_ = grid_.column_block;
    const CheckpointTensor* zeros = set->Find(name + "_zero_point");
    if (zeros != nullptr) {
      HEDDLE_RETURN_IF_ERROR(set->ExpectType(*zeros, {"I8"}));
      if (NumElements(*zeros) != Blocks(rows, grid_.row_block) * grid_.stride) {
        return set->Error(*zeros, base::StrCat("has ", NumElements(*zeros), " elements, expected ",
                                               Blocks(rows, grid_.row_block) * grid_.stride,
                                               ", as many as scales"));
      }
      zeros_ = zeros->data;
    }
    return Finish(tensor, method, *set);
  }

 private:
  void Codes(int64_t begin, int64_t count, uint8_t* out) const override {
    const auto* from = reinterpret_cast<const uint8_t*>(code_bytes.data()) + begin * cols;
    for (int64_t i = 0; i < count * cols; ++i) out[i] = from[i] ^ 0x80;
  }
  float Scale(int64_t row, int64_t group) const override { return grid_.At(row, group); }
  int32_t Zero(int64_t row, int64_t group) const override {
    if (zeros_.empty()) return 128;
    const auto at = static_cast<size_t>(row / grid_.row_block * grid_.stride + group);
    return static_cast<int8_t>(zeros_[at]) + 128;
  }

  ScaleGrid grid_;
  std::span<const std::byte> zeros_;
};

class ScaledF8 final : public QuantizedMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, BlockShape block, TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(grid_, ReadGrid(tensor, block, set));
    name = tensor.name;
    code_bytes = tensor.data;
    rows = tensor.shape[0];
    cols = tensor.shape[1];
    if (cols % 32 != 0 || grid_.column_block % 32 != 0) {
      return set->Error(tensor, base::StrCat("has ", cols, " columns and ", grid_.words,
                                             "; supported are whole 32 columns"));
    }
    dtype = cols % 128 == 0 && grid_.column_block % 128 == 0 ? DType::kF8G128 : DType::kF8G32;
    const bool is_mxfp8 = !grid_.powers.empty() && grid_.column_block == 32;
    type_name = is_mxfp8 ? "MXFP8" : base::StrCat("FP8 E4M3, ", grid_.words);
    where_ = set->Error(tensor, "");
    return absl::OkStatus();
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    const int32_t columns = kernels::Info(dtype).block_elements;
    for (int64_t r = begin; r < begin + count; ++r) {
      for (int64_t k = 0; k < cols; k += columns, out += columns + 4) {
        const float scale = grid_.At(r, k / grid_.column_block);
        std::memcpy(out, &scale, 4);
        std::memcpy(out + 4, code_bytes.data() + r * cols + k, static_cast<size_t>(columns));
      }
    }
  }

  absl::Status CheckCodes() const override {
    const bool has_nan = std::any_of(code_bytes.begin(), code_bytes.end(), [](std::byte code) {
      return (std::to_integer<int>(code) & 0x7f) == 0x7f;
    });
    const bool has_nan_scale =
        std::find(grid_.powers.begin(), grid_.powers.end(), std::byte{0xff}) != grid_.powers.end();
    if (!has_nan && !has_nan_scale) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(where_.message(), "holds NaN"));
  }

 private:
  ScaleGrid grid_;
  absl::Status where_;  // file and tensor, for messages
};

absl::Status CheckIsMatrix(const CheckpointTensor& tensor, const TensorSet& set) {
  if (tensor.shape.size() == 2 && NumElements(tensor) >= 1) return absl::OkStatus();
  return set.Error(tensor, "is quantised, but no matrix");
}

// The grid of LLM.int8: "SCB" holds the largest magnitude of each row, which 127 stands for.
absl::StatusOr<ScaleGrid> ReadLargestOfRows(const CheckpointTensor& tensor, TensorSet* set) {
  const std::string module(tensor.name.substr(0, tensor.name.size() - 6));
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* largest,
                          set->Need(tensor, module + "SCB", {"F32"}));
  HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*largest, {tensor.shape[0]}, "rows"));
  // Layouts of tensor cores were saved by versions before 0.41, with other numbers.
  const CheckpointTensor* format = set->Find(module + "weight_format");
  if (format != nullptr) {
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(*format, {"U8"}));
    const int value = format->data.empty() ? -1 : std::to_integer<int>(format->data[0]);
    if (value != 0) {
      return set->Error(*format, base::StrCat("is ", value, "; supported is 0, codes by rows"));
    }
  }
  return ScaleGrid{.scales = FloatView(*largest),
                   .column_block = tensor.shape[1],
                   .factor = 1.0f / 127,
                   .words = "scales per row"};
}

template <typename Matrix>
MatrixOr Make(const CheckpointTensor& tensor, BlockShape block, TensorSet* set) {
  auto matrix = std::make_unique<Matrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, block, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace

MatrixOr ReadScaledMatrix(const CheckpointTensor& tensor, BlockShape block, TensorSet* set) {
  HEDDLE_RETURN_IF_ERROR(CheckIsMatrix(tensor, *set));
  if (tensor.type_name == "I8") return Make<ScaledInt8>(tensor, block, set);
  return Make<ScaledF8>(tensor, block, set);
}

MatrixOr ReadLlmInt8(const CheckpointTensor& tensor, TensorSet* set) {
  HEDDLE_RETURN_IF_ERROR(CheckIsMatrix(tensor, *set));
  HEDDLE_ASSIGN_OR_RETURN(const ScaleGrid grid, ReadLargestOfRows(tensor, set));
  auto matrix = std::make_unique<ScaledInt8>();
  HEDDLE_RETURN_IF_ERROR(matrix->InitWith(grid, "bitsandbytes", tensor, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace heddle::engine
