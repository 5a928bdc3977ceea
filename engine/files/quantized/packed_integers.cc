// compressed-tensors' "pack-quantized": weight_packed [rows, cols * bits / 32] with a dense stream
// of unsigned codes per row (the signed value plus half the range), weight_scale [rows, n_groups],
// weight_zero_point packed along rows if asymmetric, weight_shape, weight_g_idx for act-order.
// Source: the compressed-tensors package, compressors/pack_quantized.
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/integer_matrix.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

class PackedMatrix final : public IntegerMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, TensorSet* set) {
    const std::string weight(tensor.name.substr(0, tensor.name.size() - kSuffix.size()));
    name = weight;
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(tensor, {"I32"}));
    HEDDLE_RETURN_IF_ERROR(ReadShape(tensor, weight, set));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                            set->NeedFloats(tensor, weight + "_scale"));
    const int64_t n_groups = NumElements(*scales) / rows;
    if (scales->shape != std::vector<int64_t>{rows, n_groups} || n_groups < 1 ||
        cols % n_groups != 0) {
      return set->ExpectShape(*scales, {rows, 1}, "rows, and one or several groups of columns");
    }
    group_ = cols / n_groups;
    scales_ = FloatView(*scales);
    HEDDLE_RETURN_IF_ERROR(ReadZeros(weight + "_zero_point", set));
    HEDDLE_RETURN_IF_ERROR(ReadOrder(weight + "_g_idx", set));
    return Finish(tensor, "compressed-tensors", *set);
  }

  static constexpr std::string_view kSuffix = "_packed";

 private:
  absl::Status ReadShape(const CheckpointTensor& tensor, const std::string& weight,
                         TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* shape,
                            set->Need(tensor, weight + "_shape", {"I64", "I32"}));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*shape, {2}, "rows and columns"));
    int64_t dims[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      const size_t size = shape->data.size() / 2;
      std::memcpy(&dims[i], shape->data.data() + i * size, size);  // little-endian
    }
    rows = dims[0];
    cols = dims[1];
    if (tensor.shape.size() != 2 || rows != tensor.shape[0] || rows < 1 || cols < 1 ||
        cols > int64_t{1} << 28) {
      return set->Error(*shape, base::StrCat("says [", rows, ", ", cols,
                                             "], which does not fit the packed tensor"));
    }
    bits_ = static_cast<int32_t>(tensor.shape[1] * 32 / cols);
    if (bits_ < 1 || bits_ > 8 || (cols * bits_ + 31) / 32 != tensor.shape[1]) {
      return set->Error(tensor, base::StrCat("has ", tensor.shape[1], " words for ", cols,
                                             " columns: no whole number of bits from 1 to 8"));
    }
    code_bytes = tensor.data;
    words_ = tensor.shape[1];
    return absl::OkStatus();
  }

  absl::Status ReadZeros(const std::string& zeros_name, TensorSet* set) {
    const CheckpointTensor* zeros = set->Find(zeros_name);
    if (zeros == nullptr) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(*zeros, {"I32"}));
    HEDDLE_RETURN_IF_ERROR(
        set->ExpectShape(*zeros, {(rows * bits_ + 31) / 32, cols / group_}, "packed rows, groups"));
    zeros_ = zeros->data;
    return absl::OkStatus();
  }

  absl::Status ReadOrder(const std::string& order_name, TensorSet* set) {
    const CheckpointTensor* order = set->Find(order_name);
    if (order == nullptr) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(*order, {"I32"}));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*order, {cols}, "columns"));
    std::vector<int32_t> groups(static_cast<size_t>(cols));
    std::memcpy(groups.data(), order->data.data(), order->data.size());
    if (groups[0] == -1) return absl::OkStatus();  // -1 means that there is no order
    return SetOrder(*order, groups, *set);
  }

  void Codes(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t r = 0; r < count; ++r) {
      const std::byte* row = code_bytes.data() + (begin + r) * words_ * 4;
      for (int64_t c = 0; c < cols; ++c) {
        out[r * cols + c] = static_cast<uint8_t>(StreamElement(row, 1, c, bits_));
      }
    }
  }
  float Scale(int64_t row, int64_t group) const override {
    return scales_[row * (cols / group_) + group];
  }
  int32_t Zero(int64_t row, int64_t group) const override {
    if (zeros_.empty()) return 1 << (bits_ - 1);
    return static_cast<int32_t>(
        StreamElement(zeros_.data() + group * 4, cols / group_, row, bits_));
  }

  int64_t words_ = 0;  // per row
  FloatView scales_;
  std::span<const std::byte> zeros_;
};

}  // namespace

MatrixOr ReadPackedIntegers(const CheckpointTensor& tensor, TensorSet* set) {
  auto matrix = std::make_unique<PackedMatrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace heddle::engine
