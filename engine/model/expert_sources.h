// The matrices of a layer's experts in the form that Device::PackStack takes, from any layout of a
// checkpoint: one tensor per expert or all stacked; gate and up apart, stacked or with alternating
// rows; [output, input] or transposed; quantised in blocks of their own.
//
// Borrows the checkpoint; owns the rearranged matrices, which are at most one layer's experts.
// REQUIRES: ValidateTensors was OK with the names and the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/name_map.h"
#include "engine/files/checkpoint.h"
#include "kernels/tensor.h"

namespace heddle::engine {

// The tensor, if its type is one that the kernels know; otherwise an error that says what is wrong.
absl::StatusOr<const CheckpointTensor*> FindTensor(const Checkpoint& checkpoint,
                                                   const std::string& name);

class ExpertSources {
 public:
  ExpertSources(const Checkpoint& checkpoint, ExpertLayout layout, int32_t n_experts)
      : checkpoint_(checkpoint), layout_(layout), n_experts_(n_experts) {}

  // Fills sources(): for each expert the two parts of `fused` (gate and up) if it is not empty,
  // else its matrices of all `names` that are not empty, in order.
  absl::Status Add(const std::string& fused, std::initializer_list<const std::string*> names);

  const std::vector<kernels::WeightSource>& sources() const { return sources_; }
  const std::vector<const CheckpointTensor*>& tensors() const { return tensors_; }

  // The biases of these matrices, [n_experts, outputs]; empty if all names are.
  absl::StatusOr<std::vector<float>> Biases(const std::string& fused,
                                            std::initializer_list<const std::string*> names) const;

 private:
  // Rows first, first + step, ... of a matrix, `count` of them.
  struct Part {
    int64_t first;
    int64_t step;
    int64_t count;
  };

  absl::Status AddMatrix(const std::string& name, int32_t expert, bool fused);
  absl::Status AddMxfp4(const std::string& name, int32_t expert, bool fused);
  void AddPlain(const CheckpointTensor& tensor, int32_t expert, Part part);
  void AddTransposed(const CheckpointTensor& tensor, int32_t expert, Part part);
  std::vector<Part> Parts(int64_t outputs, bool fused) const;

  const Checkpoint& checkpoint_;
  const ExpertLayout layout_;
  const int32_t n_experts_;
  std::vector<kernels::WeightSource> sources_;
  std::vector<const CheckpointTensor*> tensors_;
  std::vector<std::vector<std::byte>> rearranged_;
};

}  // namespace heddle::engine
