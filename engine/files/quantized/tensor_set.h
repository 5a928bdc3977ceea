// A checkpoint's tensors as the readers of quantised formats need them: by the name of the module
// that they belong to, with checked types and shapes. Errors name file and tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"

namespace heddle::engine {

class TensorSet {
 public:
  using FileOf = std::function<std::string(const CheckpointTensor&)>;

  // `tensors` sorted by name; both outlive the set.
  TensorSet(const std::vector<CheckpointTensor>& tensors, FileOf file_of)
      : tensors_(tensors), file_of_(std::move(file_of)) {}

  const std::vector<CheckpointTensor>& all() const { return tensors_; }

  // nullptr if absent. A tensor that is found here counts as used by a quantised matrix.
  const CheckpointTensor* Find(const std::string& name);

  // The companion `name` of `of`. INVALID_ARGUMENT if it is absent, or if its type is not one of
  // `types` (in the file's words).
  absl::StatusOr<const CheckpointTensor*> Need(const CheckpointTensor& of, const std::string& name,
                                               std::initializer_list<std::string_view> types);

  // The same for a companion of floats: F32, F16 or BF16.
  absl::StatusOr<const CheckpointTensor*> NeedFloats(const CheckpointTensor& of,
                                                     const std::string& name) {
    return Need(of, name, {"F32", "F16", "BF16"});
  }

  // INVALID_ARGUMENT unless the tensor has this shape; `why` says what demands it.
  absl::Status ExpectShape(const CheckpointTensor& tensor, const std::vector<int64_t>& shape,
                           std::string_view why) const;
  absl::Status ExpectType(const CheckpointTensor& tensor,
                          std::initializer_list<std::string_view> types) const;

  // An error about a tensor: "<file>: tensor "<name>" <what>".
  absl::Status Error(const CheckpointTensor& tensor, std::string_view what) const;

  bool IsUsed(std::string_view name) const { return used_.contains(name); }

 private:
  const std::vector<CheckpointTensor>& tensors_;
  FileOf file_of_;
  std::set<std::string_view> used_;
};

// Elements of a tensor of F32, F16 or BF16, or of powers of two (F8_E8M0, also as U8).
class FloatView {
 public:
  FloatView() = default;
  explicit FloatView(const CheckpointTensor& tensor);
  float operator[](int64_t index) const;

 private:
  const std::byte* data_ = nullptr;
  kernels::DType dtype_ = kernels::DType::kF32;
  bool are_powers_ = false;
};

int64_t NumElements(const CheckpointTensor& tensor);

}  // namespace heddle::engine
