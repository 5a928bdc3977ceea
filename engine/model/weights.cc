#include "engine/model/weights.h"

#include <string>
#include <utility>

#include "base/status.h"
#include "engine/model/distance_table.h"
#include "engine/model/layer_loader.h"
#include "engine/model/tensor_loader.h"

namespace heddle::engine {
namespace {

// Loads what lies before and behind all layers' streams.
absl::Status StreamEnds(TensorLoader& loader, const NameMap& names, const ModelSpec& spec,
                        ModelWeights* weights) {
  const int32_t others = spec.altup.count - 1;
  if (others < 1) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(weights->altup_in,
                          loader.Stacked(NumberedNames(names.altup_in, others), {}));
  for (int32_t i = 0; i < others; ++i) {
    const Cut own = CutRows({{int64_t{i} * spec.hidden, spec.hidden}});
    HEDDLE_ASSIGN_OR_RETURN(weights->altup_out.emplace_back(),
                            loader.Stacked(NumberedNames(names.altup_out, others), own));
  }
  return absl::OkStatus();
}

// The biases that distances add to the scores of this rank's heads.
absl::Status Distances(TensorLoader& loader, const ModelDescription& model, const Share& share,
                       ModelWeights* weights) {
  const Range heads = HeadsWithDistances(model.spec, share);
  if (heads.count == 0) return absl::OkStatus();
  std::vector<float> buckets;
  if (model.spec.distances == DistanceRule::kBuckets) {
    HEDDLE_ASSIGN_OR_RETURN(buckets, loader.Values({&model.names.distances}));
  }
  HEDDLE_ASSIGN_OR_RETURN(weights->distances,
                          loader.Upload(DistanceTable(model.spec, heads, buckets)));
  weights->distance_reach = model.spec.max_context;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model,
                                         const WeightPolicy& policy) {
  return LoadWeights(device, checkpoint, model, policy, WholeShare(model.spec));
}

absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model, const WeightPolicy& policy,
                                         const Share& share) {
  const NameMap& names = model.names;
  TensorLoader loader(device, checkpoint, names, policy, share);
  ModelWeights weights;
  const bool has_ends = share.stage == 0;
  if (has_ends && !names.embed.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.embedding, loader.VocabTable(names.embed));
  }
  if (has_ends && !names.positions.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.positions, loader.Table(names.positions));
  }
  if (has_ends && !names.token_types.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.token_types, loader.Table(names.token_types));
  }
  if (has_ends && !names.layer_inputs.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.layer_inputs, loader.Table(names.layer_inputs));
    HEDDLE_ASSIGN_OR_RETURN(LinearWeights in, loader.Linear({&names.layer_inputs_in}, {}));
    weights.layer_inputs_in = std::move(in.matrix);
    HEDDLE_ASSIGN_OR_RETURN(weights.layer_inputs_norm, loader.Vector({&names.layer_inputs_norm}));
  }
  if (has_ends) {
    HEDDLE_RETURN_IF_ERROR(StreamEnds(loader, names, model.spec, &weights));
    HEDDLE_ASSIGN_OR_RETURN(weights.embedding_norm,
                            loader.Norm(names.embed_norm, names.embed_norm_bias));
  }
  weights.layers.resize(model.spec.layers.size());
  for (int32_t layer = 0; layer < model.spec.n_layers(); ++layer) {
    if (!share.has_layer(layer)) continue;
    const LayerSpec& spec = model.spec.layers[layer];
    HEDDLE_ASSIGN_OR_RETURN(weights.layers[static_cast<size_t>(layer)],
                            LoadLayer(loader, names.Layer(layer, spec), spec,
                                      share.layers[static_cast<size_t>(layer)]));
  }
  HEDDLE_RETURN_IF_ERROR(Distances(loader, model, share, &weights));
  if (!has_ends) return weights;
  HEDDLE_ASSIGN_OR_RETURN(weights.final_norm, loader.Norm(names.final_norm, names.final_norm_bias));
  if (!names.lm_head.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.separate_head, loader.VocabTable(names.lm_head));
  }
  if (!names.lm_head_bias.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.head_bias, loader.VocabVector(names.lm_head_bias));
  }
  return weights;
}

absl::StatusOr<ModelWeights> LoadVocabulary(kernels::Device& device, const Checkpoint& checkpoint,
                                            const ModelDescription& model,
                                            const WeightPolicy& policy,
                                            std::span<const std::string> tensors) {
  const Share whole = WholeShare(model.spec);
  TensorLoader loader(device, checkpoint, model.names, policy, whole);
  ModelWeights weights;
  for (const std::string& name : tensors) {
    const bool is_embedding = name == model.names.embed;
    HEDDLE_ASSIGN_OR_RETURN((is_embedding ? weights.embedding : weights.separate_head),
                            loader.VocabTable(name));
  }
  return weights;
}

}  // namespace heddle::engine
