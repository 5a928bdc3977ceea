// Loads the weights of one layer: a rank's share of what the layer's names and spec say.
//
// `names`, `spec` and `share` are those of the layer in the whole model. Errors name the file and
// the tensor. One thread per TensorLoader.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/name_map.h"
#include "engine/model/tensor_loader.h"
#include "engine/model/weights.h"
#include "engine/parallel/shard.h"

namespace heddle::engine {

absl::StatusOr<LayerWeights> LoadLayer(TensorLoader& loader, const LayerNames& names,
                                       const LayerSpec& spec, const LayerShare& share);

// The parts of it: the projections of attention or the matrix in its place, and the experts.
absl::Status LoadAttention(TensorLoader& loader, const LayerNames& names,
                           const AttentionSpec& attention, const HeadShare& share,
                           LayerWeights* layer);
absl::StatusOr<MoeWeights> LoadExperts(TensorLoader& loader, const LayerNames& names,
                                       const MoeSpec& spec, const LayerShare& share);

}  // namespace heddle::engine
