// Loads tensors of one checkpoint onto one device, whole or a rank's share of them.
//
// Holds references: the device, the checkpoint, the names and the share outlive it. One thread.
// Errors name the file and the tensor.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/quantize.h"
#include "engine/model/weights.h"
#include "engine/parallel/cut_sources.h"
#include "engine/parallel/shard.h"
#include "kernels/device.h"

namespace heddle::engine {

class TensorLoader {
 public:
  // An empty name stands for a tensor that the model has not: it is skipped.
  using Names = std::initializer_list<const std::string*>;
  using Tensors = std::span<const CheckpointTensor* const>;

  TensorLoader(kernels::Device& device, const Checkpoint& checkpoint, const NameMap& names,
               const WeightPolicy& policy, const Share& share)
      : device_(device), checkpoint_(checkpoint), names_(names), policy_(policy), share_(share) {}

  kernels::Device& device() const { return device_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // Its flags say how the file orders what it holds.
  const NameMap& names() const { return names_; }
  const WeightPolicy& policy() const { return policy_; }

  // Loads the linear layer whose output features are those of all `names`, in order, with the
  // biases concatenated likewise. Keeps what `cut` says; without a part of it, the matrix is
  // nullptr.
  absl::StatusOr<LinearWeights> Linear(Names names, Names biases, const Cut& cut = {},
                                       WeightRole role = WeightRole::kMatrix);

  // Loads a matrix that every family stores as [rows, cols]: all, or what the cut keeps. A
  // VocabTable is cut along its rows (embedding, head).
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Table(const std::string& name,
                                                               const Cut& cut = {});
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> VocabTable(const std::string& name) {
    return Table(name, CutRows({share_.vocab}));
  }

  // The rows of all these tensors, whatever their dimensions before the last.
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Stacked(
      const std::vector<std::string>& names, const Cut& cut);

  // Concatenates vectors on the device; the result is empty if all names are. Part: what the cut
  // keeps of one.
  absl::StatusOr<DeviceVector> Vector(Names names);
  absl::StatusOr<DeviceVector> Part(const std::string& name, const Cut& cut);
  absl::StatusOr<DeviceVector> VocabVector(const std::string& name) {
    return Part(name, CutRows({share_.vocab}));
  }
  absl::StatusOr<NormWeights> Norm(const std::string& weight, const std::string& bias);

  // Vectors in two steps, for values that change between them.
  absl::StatusOr<std::vector<float>> Values(Names names);
  absl::StatusOr<DeviceVector> Upload(const std::vector<float>& values);

  absl::StatusOr<const CheckpointTensor*> Find(const std::string& name) const;
  // The tensor, of which `data` holds rows of its type.
  absl::StatusOr<const CheckpointTensor*> FindPlain(const std::string& name) const;

  // Packs what the cut keeps of sources that were made from `tensors`; nullptr: nothing.
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Pack(
      std::span<const kernels::WeightSource> sources, Tensors tensors, const Cut& cut,
      WeightRole role = WeightRole::kMatrix);

  // Before and after tensors are read: asks for their file pages and checks their codes, and gives
  // the pages back.
  absl::Status Prepare(Tensors tensors) const;
  void Release(Tensors tensors) const;

 private:
  kernels::Device& device_;
  const Checkpoint& checkpoint_;
  const NameMap& names_;
  const WeightPolicy policy_;
  const Share& share_;
};

}  // namespace heddle::engine
