#include "engine/heads/head_tensors.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"

namespace heddle::engine {

absl::Status HeadError(const Checkpoint& file, std::string_view what) {
  return absl::InvalidArgumentError(base::StrCat(file.path().string(), ": ", what));
}

absl::Status CheckTensor(const Checkpoint& file, const std::string& name,
                         std::initializer_list<int64_t> shape, std::string_view meaning) {
  const CheckpointTensor* tensor = file.Find(name);
  const std::string wanted =
      base::StrCat("expected [", absl::StrJoin(shape, ", "), "] = [", meaning, "]");
  if (tensor == nullptr) {
    return absl::NotFoundError(base::StrCat(file.path().string(), ": tensor ", base::Quote(name),
                                            " is missing, ", wanted));
  }
  if (!std::ranges::equal(tensor->shape, shape)) {
    return HeadError(file, base::StrCat("tensor ", base::Quote(name), " has shape [",
                                        absl::StrJoin(tensor->shape, ", "), "], ", wanted));
  }
  return tensor->dtype.has_value() ? absl::OkStatus() : UnsupportedType(file, *tensor);
}

absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> LoadMatrix(kernels::Device& device,
                                                                  const Checkpoint& file,
                                                                  const std::string& name) {
  const CheckpointTensor* tensor = file.Find(name);
  HEDDLE_CHECK(tensor != nullptr && tensor->dtype.has_value(), "a head's matrix was not checked");
  file.WillNeed(*tensor);
  if (tensor->quantized != nullptr) HEDDLE_RETURN_IF_ERROR(tensor->quantized->CheckCodes());
  const kernels::WeightSource source = SourceOf(*tensor);
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::PackedWeight> packed, device.Pack({&source, 1}));
  file.DontNeed(*tensor);
  return packed;
}

absl::StatusOr<DeviceVector> LoadVector(kernels::Device& device, const Checkpoint& file,
                                        const std::string& name) {
  const CheckpointTensor* tensor = file.Find(name);
  HEDDLE_CHECK(tensor != nullptr && tensor->dtype.has_value(), "a head's vector was not checked");
  std::vector<float> values(static_cast<size_t>(tensor->shape.back()));
  kernels::DequantizeRow(*tensor->dtype, tensor->data.data(), tensor->shape.back(), values.data());
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer, device.Allocate(bytes));
  HEDDLE_RETURN_IF_ERROR(device.Upload(buffer->data(), values.data(), bytes));
  return DeviceVector(std::move(buffer));
}

int64_t PackedBytes(const Checkpoint& file, const std::vector<std::string>& names,
                    const kernels::Device* device) {
  int64_t bytes = 0;
  for (const std::string& name : names) {
    const CheckpointTensor* tensor = name.empty() ? nullptr : file.Find(name);
    if (tensor == nullptr || !tensor->dtype.has_value() || tensor->shape.empty()) continue;
    const int64_t cols = tensor->shape.back();
    if (tensor->shape.size() == 1) {
      bytes += cols * int64_t{sizeof(float)};
    } else if (device == nullptr) {
      bytes += tensor->bytes();
    } else {
      bytes += SourceOf(*tensor).rows * device->PackedRowBytes(*tensor->dtype, cols);
    }
  }
  return bytes;
}

}  // namespace heddle::engine
