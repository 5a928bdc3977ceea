#include "engine/heads/feature_source.h"

#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/heads/describe_heads.h"
#include "engine/heads/feature_network.h"
#include "engine/heads/head_tensors.h"
#include "engine/heads/open_heads.h"
#include "engine/model/capacity.h"

namespace heddle::engine {
namespace {

class FeatureSource final : public DraftSource {
 public:
  FeatureSource(FeatureDraft draft, std::optional<Checkpoint> own, const Checkpoint& target)
      : draft_(std::move(draft)), own_(std::move(own)), target_(target) {
    const ModelSpec& spec = draft_.model.spec;
    traits_ = {.kind = draft_.kind,
               .kv_layers = KvLayers(spec),
               .features = draft_.features,
               .reads_next_token = draft_.block == 0,
               .guesses_per_pass = draft_.block == 0 ? 1 : draft_.block - 1,
               .mask = draft_.mask,
               .vocab = draft_.draft_vocab(),
               .target_ids = draft_.target_ids,
               .shares_embedding = draft_.own_embedding.empty(),
               .shares_head = draft_.own_head.empty()};
    traits_.text = base::StrCat(draft_.kind, " of ", spec.n_layers(),
                                spec.n_layers() == 1 ? " layer, " : " layers, ",
                                base::ShowBytes(WeightBytes(nullptr)));
  }

  const DraftTraits& traits() const override { return traits_; }

  int64_t WeightBytes(const kernels::Device* device) const override {
    std::vector<std::string> names = {
        draft_.fuse,       draft_.project,       draft_.project_bias, draft_.embedding_norm,
        draft_.state_norm, draft_.own_embedding, draft_.own_head};
    names.insert(names.end(), draft_.feature_norms.begin(), draft_.feature_norms.end());
    for (const std::string& name : UsedTensors(draft_.model)) names.push_back(name);
    return PackedBytes(file(), names, device);
  }

  int64_t WorkspaceBytes(int32_t max_batch_tokens, kernels::DType activations) const override {
    return FeatureNetwork::WorkspaceBytes(draft_, max_batch_tokens, activations);
  }

  absl::StatusOr<std::unique_ptr<DraftNetwork>> Load(kernels::Device& device,
                                                     const ModelSpec& /*spec*/,
                                                     const ModelWeights& model,
                                                     int32_t max_batch_tokens) override {
    FeatureWeights weights;
    HEDDLE_ASSIGN_OR_RETURN(weights.layers, LoadWeights(device, file(), draft_.model));
    for (const std::string& name : draft_.feature_norms) {
      HEDDLE_ASSIGN_OR_RETURN(DeviceVector norm, LoadVector(device, file(), name));
      weights.feature_norms.push_back(std::move(norm));
    }
    HEDDLE_RETURN_IF_ERROR(Matrix(device, draft_.fuse, &weights.fuse));
    HEDDLE_RETURN_IF_ERROR(Matrix(device, draft_.project, &weights.project.matrix));
    HEDDLE_RETURN_IF_ERROR(Vector(device, draft_.project_bias, &weights.project.bias));
    HEDDLE_RETURN_IF_ERROR(Vector(device, draft_.embedding_norm, &weights.embedding_norm));
    HEDDLE_RETURN_IF_ERROR(Vector(device, draft_.state_norm, &weights.state_norm));
    HEDDLE_RETURN_IF_ERROR(Matrix(device, draft_.own_embedding, &weights.own_embedding));
    HEDDLE_RETURN_IF_ERROR(Matrix(device, draft_.own_head, &weights.own_head));
    return FeatureNetwork::Create(device, draft_, std::move(weights), model, max_batch_tokens);
  }

 private:
  const Checkpoint& file() const { return own_.has_value() ? *own_ : target_; }

  // Nothing is loaded for an empty name.
  absl::Status Matrix(kernels::Device& device, const std::string& name,
                      std::unique_ptr<kernels::PackedWeight>* matrix) const {
    if (name.empty()) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(*matrix, LoadMatrix(device, file(), name));
    return absl::OkStatus();
  }
  absl::Status Vector(kernels::Device& device, const std::string& name,
                      DeviceVector* vector) const {
    if (name.empty()) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(*vector, LoadVector(device, file(), name));
    return absl::OkStatus();
  }

  const FeatureDraft draft_;
  const std::optional<Checkpoint> own_;
  const Checkpoint& target_;
  DraftTraits traits_;
};

}  // namespace

std::unique_ptr<DraftSource> MakeFeatureSource(FeatureDraft draft, std::optional<Checkpoint> own,
                                               const Checkpoint& target) {
  return std::make_unique<FeatureSource>(std::move(draft), std::move(own), target);
}

absl::StatusOr<std::unique_ptr<DraftSource>> OpenEagle(const std::filesystem::path& path,
                                                       const Checkpoint& target,
                                                       const ModelDescription& model) {
  HEDDLE_ASSIGN_OR_RETURN(Checkpoint file, OpenCheckpoint(path));
  HEDDLE_ASSIGN_OR_RETURN(FeatureDraft draft, DescribeEagle(file, target, model));
  return MakeFeatureSource(std::move(draft), std::move(file), target);
}

absl::StatusOr<std::unique_ptr<DraftSource>> OpenMtp(const Checkpoint& target,
                                                     const ModelDescription& model) {
  HEDDLE_ASSIGN_OR_RETURN(FeatureDraft draft, DescribeMtp(target, model));
  return MakeFeatureSource(std::move(draft), std::nullopt, target);
}

}  // namespace heddle::engine
