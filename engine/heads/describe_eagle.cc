// EAGLE's files: config.json with safetensors, or GGUF. What a network is follows from its tensors;
// config.json is asked for sizes, for the model's layers that it reads, and for the order of norms,
// which tensors do not show.
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/heads/describe_heads.h"
#include "engine/heads/eagle_config.h"
#include "engine/heads/feature_files.h"
#include "engine/heads/head_tensors.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {
namespace {

std::optional<FeatureLayout> FindLayout(const Checkpoint& file) {
  if (file.gguf() != nullptr) return FeatureLayout{"blk.{}.", "", /*is_gguf=*/true};
  for (const char* layers : {"midlayer.", "layers.{}.", "model.layers.{}.", "model.midlayer."}) {
    FeatureLayout layout{layers, "", false};
    if (file.Find(layout.Layer0("mlp.down_proj.weight")) == nullptr) continue;
    if (file.Find("model.fc.weight") != nullptr) layout.top = "model.";
    return layout;
  }
  return std::nullopt;
}

// Reads one network's files.
class EagleReader {
 public:
  EagleReader(const Checkpoint& file, const Checkpoint& target, const ModelDescription& model)
      : file_(file), target_(target), model_(model) {}

  absl::StatusOr<FeatureDraft> Read() {
    HEDDLE_ASSIGN_OR_RETURN(config_, EagleConfig::Read(file_));
    HEDDLE_RETURN_IF_ERROR(config_.CheckVerifier(file_, target_));
    if (config_.is_block()) return DescribeDflash(file_, config_, model_);
    const std::optional<FeatureLayout> layout = FindLayout(file_);
    if (!layout.has_value()) {
      return HeadError(file_,
                       "has no layer of an EAGLE network: expected tensors midlayer.*, layers.0.* "
                       "or model.layers.0.*");
    }
    layout_ = *layout;
    HEDDLE_RETURN_IF_ERROR(ReadLayers());
    HEDDLE_RETURN_IF_ERROR(CheckFeatureSizes(file_, config_, model_, &draft_));
    HEDDLE_RETURN_IF_ERROR(is_eagle3_ ? ReadEagle3() : ReadEagle1());
    HEDDLE_RETURN_IF_ERROR(ReadFeatureTables(file_, config_, layout_, model_, &draft_));
    HEDDLE_RETURN_IF_ERROR(CheckUsedTensors(file_, draft_.model));
    HEDDLE_RETURN_IF_ERROR(CheckAllUsed(file_, draft_, "EAGLE-1, 2, 3 and 3.1"));
    return std::move(draft_);
  }

 private:
  const ModelSpec& spec() const { return draft_.model.spec; }
  std::string Top(const std::string& name) const { return layout_.Top(name); }

  // The layers as those of an ordinary decoder, with this file's names.
  absl::Status ReadLayers() {
    const std::string hidden_norm =
        layout_.Layer0(layout_.is_gguf ? "attn_norm_2.weight" : "hidden_norm.weight");
    is_eagle3_ = file_.Find(hidden_norm) != nullptr;
    if (layout_.is_gguf) {
      HEDDLE_ASSIGN_OR_RETURN(draft_.model, DescribeGgufAs(file_, "llama"));
    } else {
      HEDDLE_ASSIGN_OR_RETURN(draft_.model, ReadFeatureLayers(file_, config_, layout_, "llama"));
    }
    LayerSpec& first = draft_.model.spec.layers.front();
    if (first.attention.mla.kv_rank > 0 || first.moe.n_experts > 0) {
      return HeadError(file_, "is a network with latent attention or experts, which is not known");
    }
    if (is_eagle3_) {
      first.attention_input = AttentionInput::kPair;
      draft_.kind = "eagle3";
      draft_.state_norm = hidden_norm;
      draft_.embedding_norm = draft_.model.names.Layer(0, first).attn_norm;
      return CheckTensor(file_, hidden_norm, {spec().hidden}, "hidden");
    }
    draft_.kind = "eagle";
    const LayerNames names = draft_.model.names.Layer(0, first);
    if (file_.Find(names.attn_norm) == nullptr) first.attention_input = AttentionInput::kRawStream;
    return absl::OkStatus();
  }

  absl::Status ReadEagle1() {
    const std::string fc = Top("fc.weight");
    draft_.features = {DraftTraits::kFinalNormed};
    if (spec().hidden != model_.spec.hidden) {
      return HeadError(file_,
                       base::StrCat("has a hidden size of ", spec().hidden, ", and the model's is ",
                                    model_.spec.hidden, "; expected the same for EAGLE-1 and 2"));
    }
    HEDDLE_RETURN_IF_ERROR(
        CheckTensor(file_, fc, {spec().hidden, 2 * spec().hidden}, "hidden, 2 hidden"));
    draft_.project = fc;
    draft_.project_bias = FirstOf(file_, {Top("fc.bias")});
    draft_.embedding_norm = FirstOf(file_, {Top("embedding_layernorm.weight")});
    draft_.state_norm = FirstOf(file_, {Top("hidden_states_layernorm.weight")});
    for (const std::string* name :
         {&draft_.project_bias, &draft_.embedding_norm, &draft_.state_norm}) {
      if (name->empty()) continue;
      HEDDLE_RETURN_IF_ERROR(CheckTensor(file_, *name, {spec().hidden}, "hidden"));
    }
    NameMap& names = draft_.model.names;
    if (file_.Find(names.final_norm) == nullptr) names.final_norm.clear();
    return absl::OkStatus();
  }

  absl::Status ReadEagle3() {
    draft_.stream_is_normed = config_.Flag("norm_before_residual").value_or(false);
    draft_.keeps_normed = config_.Flag("norm_output").value_or(false);
    const std::string fc = Top("fc.weight");
    const CheckpointTensor* fuse = file_.Find(fc);
    if (fuse == nullptr) {
      if (spec().hidden != model_.spec.hidden) {
        return HeadError(file_, base::StrCat("tensor ", base::Quote(fc), " is missing"));
      }
      draft_.features = {DraftTraits::kFinalNormed};
      return absl::OkStatus();
    }
    const int64_t width = model_.spec.hidden;
    const int64_t cols = fuse->shape.size() == 2 ? fuse->shape[1] : 0;
    if (cols < width || cols % width != 0 || cols / width > kMaxFeatures) {
      return HeadError(
          file_, base::StrCat("tensor ", base::Quote(fc), " has shape [",
                              absl::StrJoin(fuse->shape, ", "), "], expected [", spec().hidden,
                              ", a small multiple of ", width, ", the model's hidden size]"));
    }
    HEDDLE_RETURN_IF_ERROR(
        CheckTensor(file_, fc, {spec().hidden, cols}, "hidden, features * the model's hidden"));
    draft_.fuse = fc;
    const auto count = static_cast<int32_t>(cols / width);
    HEDDLE_ASSIGN_OR_RETURN(draft_.features,
                            config_.Features(file_, count, model_.spec.n_layers()));
    return ReadFeatureNorms(count);
  }

  // A norm of each feature, or one of all together.
  absl::Status ReadFeatureNorms(int32_t count) {
    const int64_t width = model_.spec.hidden;
    const std::string joint =
        FirstOf(file_, {Top("input_norm.weight"), "enc.input_norm.weight", "input_norm.weight"});
    const std::string each = FirstOf(file_, {Top("fc_norm.0.weight"), "fc_norm.0.weight"});
    const bool has_joint = config_.Flag("norm_before_fc").value_or(!joint.empty());
    const bool has_each = config_.Flag("fc_norm").value_or(!each.empty());
    if (has_joint && has_each) {
      return HeadError(file_, "norm_before_fc and fc_norm exclude each other");
    }
    if (has_joint) {
      draft_.feature_norms = {joint.empty() ? Top("input_norm.weight") : joint};
      return CheckTensor(file_, draft_.feature_norms[0], {count * width},
                         "features * the model's hidden");
    }
    for (int32_t i = 0; has_each && i < count; ++i) {
      draft_.feature_norms.push_back(Top(base::StrCat("fc_norm.", i, ".weight")));
      HEDDLE_RETURN_IF_ERROR(
          CheckTensor(file_, draft_.feature_norms.back(), {width}, "the model's hidden"));
    }
    return absl::OkStatus();
  }

  static constexpr int64_t kMaxFeatures = 16;  // published networks have 3 to 5

  const Checkpoint& file_;
  const Checkpoint& target_;
  const ModelDescription& model_;
  FeatureLayout layout_;
  EagleConfig config_;
  bool is_eagle3_ = false;
  FeatureDraft draft_;
};

}  // namespace

absl::StatusOr<FeatureDraft> DescribeEagle(const Checkpoint& file, const Checkpoint& target,
                                           const ModelDescription& model) {
  return EagleReader(file, target, model).Read();
}

}  // namespace heddle::engine
