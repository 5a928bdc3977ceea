// EAGLE's files: config.json with safetensors, or GGUF. What a network is follows from its tensors;
// config.json is asked for sizes, for the model's layers that it reads, and for the order of norms,
// which tensors do not show.
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/heads/describe_heads.h"
#include "engine/heads/eagle_config.h"
#include "engine/heads/head_tensors.h"
#include "engine/heads/token_map.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {
namespace {

// Where the parts of a network are in its file.
struct Layout {
  std::string layers;  // prefix of layer {}
  std::string top;     // prefix of everything else
  bool is_gguf = false;

  std::string Layer0(const std::string& name) const {
    std::string prefix = layers;
    if (const size_t at = prefix.find("{}"); at != std::string::npos) prefix.replace(at, 2, "0");
    return prefix + name;
  }
};

std::optional<Layout> FindLayout(const Checkpoint& file) {
  if (file.gguf() != nullptr) return Layout{"blk.{}.", "", /*is_gguf=*/true};
  for (const char* layers : {"midlayer.", "layers.{}.", "model.layers.{}.", "model.midlayer."}) {
    Layout layout{layers, "", false};
    if (file.Find(layout.Layer0("mlp.down_proj.weight")) == nullptr) continue;
    if (file.Find("model.fc.weight") != nullptr) layout.top = "model.";
    return layout;
  }
  return std::nullopt;
}

// The first of the names that the file has; empty: none.
std::string FirstOf(const Checkpoint& file, std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (file.Find(name) != nullptr) return name;
  }
  return "";
}

// Reads one network's files.
class EagleReader {
 public:
  EagleReader(const Checkpoint& file, const Checkpoint& target, const ModelDescription& model)
      : file_(file), target_(target), model_(model) {}

  absl::StatusOr<FeatureDraft> Read() {
    const std::optional<Layout> layout = FindLayout(file_);
    if (!layout.has_value()) {
      return HeadError(file_,
                       "has no layer of an EAGLE network: expected tensors midlayer.*, layers.0.* "
                       "or model.layers.0.*");
    }
    layout_ = *layout;
    HEDDLE_ASSIGN_OR_RETURN(config_, EagleConfig::Read(file_));
    HEDDLE_RETURN_IF_ERROR(config_.CheckVerifier(file_, target_));
    HEDDLE_RETURN_IF_ERROR(ReadLayers());
    HEDDLE_RETURN_IF_ERROR(CheckSizes());
    HEDDLE_RETURN_IF_ERROR(is_eagle3_ ? ReadEagle3() : ReadEagle1());
    HEDDLE_RETURN_IF_ERROR(ReadTables());
    HEDDLE_RETURN_IF_ERROR(CheckUsedTensors(file_, draft_.model));
    HEDDLE_RETURN_IF_ERROR(CheckAllUsed());
    return std::move(draft_);
  }

 private:
  const ModelSpec& spec() const { return draft_.model.spec; }
  std::string Top(const std::string& name) const { return layout_.top + name; }

  // The layers as those of an ordinary decoder, with this file's names.
  absl::Status ReadLayers() {
    const std::string hidden_norm =
        layout_.Layer0(layout_.is_gguf ? "attn_norm_2.weight" : "hidden_norm.weight");
    is_eagle3_ = file_.Find(hidden_norm) != nullptr;
    if (layout_.is_gguf) {
      HEDDLE_ASSIGN_OR_RETURN(draft_.model, DescribeGgufAs(file_, "llama"));
    } else {
      const bool qkv_bias = file_.Find(layout_.Layer0("self_attn.q_proj.bias")) != nullptr;
      const bool mlp_bias = file_.Find(layout_.Layer0("mlp.down_proj.bias")) != nullptr;
      HEDDLE_ASSIGN_OR_RETURN(draft_.model, config_.DescribeLayers(file_, qkv_bias, mlp_bias));
      Rename();
      const std::string out_bias = layout_.Layer0("self_attn.o_proj.bias");
      const bool has_out_bias = file_.Find(out_bias) != nullptr;
      for (LayerSpec& layer : draft_.model.spec.layers) layer.attention.out_bias = has_out_bias;
      if (!has_out_bias) draft_.model.names.layer.o_bias.clear();
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

  // From the names of transformers' decoder to those of the file.
  void Rename() {
    constexpr std::string_view kPattern = "model.layers.{}.";
    NameMap& names = draft_.model.names;
    names.layer.ForEach([&](std::string* name) {
      if (name->starts_with(kPattern)) name->replace(0, kPattern.size(), layout_.layers);
    });
    names.final_norm = Top("norm.weight");
  }

  absl::Status CheckSizes() {
    draft_.feature_width = model_.spec.hidden;
    HEDDLE_ASSIGN_OR_RETURN(const int32_t width, config_.TargetHidden(file_, model_.spec.hidden));
    if (width != model_.spec.hidden) {
      return HeadError(file_, base::StrCat("reads hidden states of ", width,
                                           ", and those of the model are ", model_.spec.hidden));
    }
    if (spec().vocab != model_.spec.vocab) {
      return HeadError(file_, base::StrCat("is for a vocabulary of ", spec().vocab,
                                           " tokens, and the model's has ", model_.spec.vocab));
    }
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

  // Embedding, head and the map of the draft vocabulary.
  absl::Status ReadTables() {
    const int64_t hidden = spec().hidden;
    draft_.own_embedding =
        FirstOf(file_, {layout_.is_gguf ? "token_embd.weight" : Top("embed_tokens.weight"),
                        "embed_tokens.weight"});
    draft_.own_head = FirstOf(
        file_, {layout_.is_gguf ? "output.weight" : "lm_head.weight", Top("lm_head.weight")});
    draft_.model.names.embed.clear();
    draft_.model.names.lm_head.clear();
    if ((draft_.own_embedding.empty() || draft_.own_head.empty()) && hidden != model_.spec.hidden) {
      return HeadError(
          file_, base::StrCat("has no ", draft_.own_head.empty() ? "output head" : "embedding",
                              " of its own, and its hidden size of ", hidden,
                              " is not the model's, ", model_.spec.hidden));
    }
    if (!draft_.own_embedding.empty()) {
      HEDDLE_RETURN_IF_ERROR(CheckTensor(file_, draft_.own_embedding, {spec().vocab, hidden},
                                         "the model's vocabulary, hidden"));
    }
    HEDDLE_RETURN_IF_ERROR(ReadMap());
    if (draft_.own_head.empty()) return absl::OkStatus();
    return CheckTensor(file_, draft_.own_head, {draft_.draft_vocab(), hidden},
                       "draft vocabulary, hidden");
  }

  absl::Status ReadMap() {
    const std::string name = FirstOf(file_, {"d2t", Top("d2t")});
    const CheckpointTensor* head = draft_.own_head.empty() ? nullptr : file_.Find(draft_.own_head);
    const CheckpointTensor* map = file_.Find(name);
    const int64_t rows = head != nullptr && !head->shape.empty() ? head->shape[0] : spec().vocab;
    HEDDLE_ASSIGN_OR_RETURN(const int32_t draft_vocab,
                            config_.DraftVocab(file_, rows, spec().vocab));
    if (map == nullptr && draft_vocab == spec().vocab) return absl::OkStatus();
    if (head == nullptr) {
      return HeadError(file_, base::StrCat("has a vocabulary of its own, ", draft_vocab,
                                           " tokens, but no lm_head.weight for it"));
    }
    const TokenMapKind kind = layout_.is_gguf ? TokenMapKind::kIds : TokenMapKind::kOffsets;
    HEDDLE_ASSIGN_OR_RETURN(draft_.target_ids, ReadTokenMap(file_, name.empty() ? "d2t" : name,
                                                            kind, draft_vocab, spec().vocab));
    return absl::OkStatus();
  }

  // Every tensor has to have a place: others belong to a variant that would be run wrongly.
  absl::Status CheckAllUsed() const {
    std::unordered_set<std::string> used = UsedTensors(draft_.model);
    for (const std::string* name :
         {&draft_.fuse, &draft_.project, &draft_.project_bias, &draft_.embedding_norm,
          &draft_.state_norm, &draft_.own_embedding, &draft_.own_head}) {
      used.insert(*name);
    }
    used.insert(draft_.feature_norms.begin(), draft_.feature_norms.end());
    for (const CheckpointTensor& tensor : file_.tensors()) {
      const std::string_view name = tensor.name;
      // t2d is d2t's inverse; others are buffers, and parts of the model that training kept.
      const bool harmless = name.ends_with("d2t") || name.ends_with("t2d") ||
                            name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight" ||
                            name.starts_with("verifier_");
      if (harmless || used.contains(std::string(name))) continue;
      return absl::UnimplementedError(
          base::StrCat(file_.path().string(), ": tensor ", base::Quote(name),
                       " belongs to no network that this version knows (EAGLE-1, 2, 3 and 3.1)"));
    }
    return absl::OkStatus();
  }

  static constexpr int64_t kMaxFeatures = 16;  // published networks have 3 to 5

  const Checkpoint& file_;
  const Checkpoint& target_;
  const ModelDescription& model_;
  Layout layout_;
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
