// Tensors of a draft network's files: checked against the shapes that its place wants, and loaded.
// Private to engine/heads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "engine/model/weights.h"
#include "kernels/device.h"

namespace heddle::engine {

// NOT_FOUND or INVALID_ARGUMENT, naming file, tensor and `meaning` of the shape, unless the tensor
// is there, has this shape and a type that the kernels compute with.
absl::Status CheckTensor(const Checkpoint& file, const std::string& name,
                         std::initializer_list<int64_t> shape, std::string_view meaning);

// REQUIRES of the following: CheckTensor was OK with that name.
absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> LoadMatrix(kernels::Device& device,
                                                                  const Checkpoint& file,
                                                                  const std::string& name);
absl::StatusOr<DeviceVector> LoadVector(kernels::Device& device, const Checkpoint& file,
                                        const std::string& name);

// Bytes of these tensors once packed; nullptr: for the host. Names without a tensor count nothing.
int64_t PackedBytes(const Checkpoint& file, const std::vector<std::string>& names,
                    const kernels::Device* device);

// `<file>: <what>`.
absl::Status HeadError(const Checkpoint& file, std::string_view what);

}  // namespace heddle::engine
