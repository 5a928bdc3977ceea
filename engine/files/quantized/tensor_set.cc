#include "engine/files/quantized/tensor_set.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"

namespace heddle::engine {

const CheckpointTensor* TensorSet::Find(const std::string& name) {
  auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                             [](const auto& t, const std::string& n) { return t.name < n; });
  if (it == tensors_.end() || it->name != name) return nullptr;
  used_.insert(it->name);
  return &*it;
}

absl::StatusOr<const CheckpointTensor*> TensorSet::Need(
    const CheckpointTensor& of, const std::string& name,
    std::initializer_list<std::string_view> types) {
  const CheckpointTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return Error(
        of, base::StrCat("is quantised, but its companion ", base::Quote(name), " is missing"));
  }
  HEDDLE_RETURN_IF_ERROR(ExpectType(*tensor, types));
  return tensor;
}

absl::Status TensorSet::ExpectType(const CheckpointTensor& tensor,
                                   std::initializer_list<std::string_view> types) const {
  if (std::find(types.begin(), types.end(), tensor.type_name) != types.end()) {
    return absl::OkStatus();
  }
  std::string wanted = absl::StrJoin(
      types, " or ", [](std::string* out, std::string_view type) { out->append(type); });
  return Error(tensor, base::StrCat("is stored as ", tensor.type_name, ", expected ", wanted));
}

absl::Status TensorSet::ExpectShape(const CheckpointTensor& tensor,
                                    const std::vector<int64_t>& shape, std::string_view why) const {
  if (tensor.shape == shape) return absl::OkStatus();
  return Error(tensor, base::StrCat("has shape [", absl::StrJoin(tensor.shape, ", "),
                                    "], expected [", absl::StrJoin(shape, ", "), "] (", why, ")"));
}

absl::Status TensorSet::Error(const CheckpointTensor& tensor, std::string_view what) const {
  return absl::InvalidArgumentError(
      base::StrCat(file_of_(tensor), ": tensor ", base::Quote(tensor.name), " ", what));
}

FloatView::FloatView(const CheckpointTensor& tensor)
    : data_(tensor.data.data()),
      dtype_(tensor.dtype.value_or(kernels::DType::kF32)),
      are_powers_(tensor.type_name == "F8_E8M0" || tensor.type_name == "U8") {}

float FloatView::operator[](int64_t index) const {
  if (are_powers_) {  // 2^(e - 127), which is subnormal for 0, and infinite for NaN's 255
    const auto exponent = std::to_integer<uint32_t>(data_[index]);
    return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent << 23);
  }
  float value;
  kernels::DequantizeRow(dtype_, data_ + index * kernels::Info(dtype_).block_bytes, 1, &value);
  return value;
}

int64_t NumElements(const CheckpointTensor& tensor) {
  int64_t count = 1;  // cannot overflow: the readers have checked the size in bytes
  for (int64_t dim : tensor.shape) count *= dim;
  return count;
}

}  // namespace heddle::engine
