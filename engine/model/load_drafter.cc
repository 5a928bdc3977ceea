#include "engine/model/load_drafter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/model/decoder.h"
#include "engine/model/draft_runner.h"
#include "engine/model/weights.h"

namespace heddle::engine {
namespace {

// The matrices of the model that the drafter reads and that its rank has a part of only.
std::vector<std::string> VocabularyOf(const DraftTraits& traits, const ModelDescription& model,
                                      const Layout& layout) {
  std::vector<std::string> tensors;
  if (layout.tp == 1) return tensors;
  const NameMap& names = model.names;
  const bool is_tied = names.lm_head.empty();
  if (traits.shares_embedding || (traits.shares_head && is_tied)) tensors.push_back(names.embed);
  if (traits.shares_head && !is_tied) tensors.push_back(names.lm_head);
  return tensors;
}

}  // namespace

absl::StatusOr<OpenedDrafter> OpenDrafter(const Checkpoint& checkpoint,
                                          const ModelDescription& model,
                                          const kernels::Device* device,
                                          const LoadOptions& options) {
  OpenedDrafter drafter;
  if (!options.open_draft) return drafter;
  HEDDLE_ASSIGN_OR_RETURN(drafter.source, options.open_draft(checkpoint, model));
  if (drafter.source == nullptr) return drafter;
  const bool plans_ahead = device != nullptr && device->max_in_flight() > 1;
  if (options.drafter_yields && plans_ahead) {
    LeaveOut("this device's steps are planned ahead; a drafter that --speculate names runs",
             &drafter);
    return drafter;
  }
  drafter.vocabulary = VocabularyOf(drafter.source->traits(), model, options.layout);
  return drafter;
}

void LeaveOut(const std::string& why, OpenedDrafter* drafter) {
  drafter->left_out = absl::StrCat(drafter->source->traits().text, ": ", why);
  drafter->source.reset();
}

absl::Status CheckGroups(const LoadOptions& options, const Capacity& capacity) {
  if (options.meeting == nullptr || capacity.drafter_keeps_groups) return absl::OkStatus();
  return absl::UnimplementedError(
      "a drafter whose layers see fewer or more positions than the model's does not work with "
      "ranks in other processes yet");
}

void CountDrafter(const OpenedDrafter& drafter, const Checkpoint& checkpoint,
                  const ModelDescription& model, const WeightPolicy& policy,
                  const kernels::Device* device, int32_t n_stages, CapacityOptions* capacity) {
  if (drafter.source == nullptr) return;
  const DraftTraits& traits = drafter.source->traits();
  const kernels::DType activations =
      device == nullptr ? capacity->activation_dtype : device->activation_dtype();
  capacity->draft_kv_layers = traits.kv_layers;
  capacity->draft_weight_bytes = drafter.source->WeightBytes(device);
  for (const std::string& name : drafter.vocabulary) {
    capacity->draft_weight_bytes += KeptBytes(*checkpoint.Find(name), model, policy, device);
  }
  capacity->draft_workspace_bytes =
      drafter.source->WorkspaceBytes(capacity->max_batch_tokens, activations) +
      DraftRunner::WorkspaceBytes(traits) +
      Decoder::FeatureBytes(model.spec, traits.features.size(), n_stages,
                            capacity->max_batch_tokens, activations);
  capacity->max_ahead_tokens = DraftRunner::kMaxGuesses;
  if (traits.guesses_per_pass > 1 || traits.is_block()) {
    capacity->max_ahead_tokens = std::min(capacity->max_ahead_tokens, traits.guesses_per_pass);
  }
  capacity->rows_beyond_guesses = traits.is_block() ? 1 : 0;
  capacity->drafter_features = traits.features;
  capacity->drafter_reads_features = !traits.features.empty() && !traits.kv_layers.empty();
}

absl::Status LoadDrafter(const OpenedDrafter& drafter, const Checkpoint& checkpoint,
                         const ModelDescription& model, const WeightPolicy& policy,
                         const ExecutorLimits& limits, LocalExecutor::Parts* parts) {
  if (drafter.source == nullptr) return absl::OkStatus();
  kernels::Device& device = *parts->device;
  parts->draft_traits = drafter.source->traits();
  if (!drafter.vocabulary.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(ModelWeights vocabulary,
                            LoadVocabulary(device, checkpoint, model, policy, drafter.vocabulary));
    parts->draft_vocabulary = std::make_unique<ModelWeights>(std::move(vocabulary));
  }
  const ModelWeights& shared =
      parts->draft_vocabulary == nullptr ? *parts->weights : *parts->draft_vocabulary;
  HEDDLE_ASSIGN_OR_RETURN(
      parts->drafter, drafter.source->Load(device, *parts->spec, shared, limits.max_batch_tokens));
  return absl::OkStatus();
}

}  // namespace heddle::engine
