// The up-projections of latent attention (MlaSpec), one matrix per head in the form that
// Device::PackStack takes. Those of the keys are transposed because they are applied to queries.
//
// Borrows the checkpoint; owns the transposed matrices of at most one layer.
// REQUIRES: ValidateTensors was OK with the names.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "engine/family/name_map.h"
#include "engine/files/checkpoint.h"
#include "engine/model/model_spec.h"
#include "kernels/tensor.h"

namespace heddle::engine {

class HeadProjections {
 public:
  HeadProjections(const Checkpoint& checkpoint, const AttentionSpec& attention)
      : checkpoint_(checkpoint), n_heads_(attention.n_heads), mla_(attention.mla) {}

  absl::Status Read(const LayerNames& names);

  const std::vector<kernels::WeightSource>& keys() const { return keys_; }      // [kv_rank, nope]
  const std::vector<kernels::WeightSource>& values() const { return values_; }  // [v, kv_rank]

 private:
  void Split(const CheckpointTensor& kv_b);
  void AddTransposed(const CheckpointTensor& tensor, int64_t first_row);

  const Checkpoint& checkpoint_;
  const int32_t n_heads_;
  const MlaSpec mla_;
  std::vector<kernels::WeightSource> keys_;
  std::vector<kernels::WeightSource> values_;
  std::vector<std::vector<std::byte>> turned_;
};

}  // namespace heddle::engine
