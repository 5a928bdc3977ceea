#include "engine/heads/feature_files.h"

#include <unordered_set>

#include "base/message.h"
#include "base/status.h"
#include "engine/heads/head_tensors.h"

namespace heddle::engine {

std::string FeatureLayout::Layer0(const std::string& name) const {
  std::string prefix = layers;
  if (const size_t at = prefix.find("{}"); at != std::string::npos) prefix.replace(at, 2, "0");
  return prefix + name;
}

std::string FirstOf(const Checkpoint& file, std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (file.Find(name) != nullptr) return name;
  }
  return "";
}

absl::StatusOr<ModelDescription> ReadFeatureLayers(const Checkpoint& file,
                                                   const EagleConfig& config,
                                                   const FeatureLayout& layout,
                                                   std::string_view family) {
  const auto has = [&](const char* name) { return file.Find(layout.Layer0(name)) != nullptr; };
  HEDDLE_ASSIGN_OR_RETURN(
      ModelDescription model,
      config.DescribeLayers(file, family, has("self_attn.q_proj.bias"), has("mlp.down_proj.bias")));
  constexpr std::string_view kPattern = "model.layers.{}.";
  model.names.layer.ForEach([&](std::string* name) {
    if (name->starts_with(kPattern)) name->replace(0, kPattern.size(), layout.layers);
  });
  model.names.final_norm = layout.Top("norm.weight");
  const bool has_out_bias = has("self_attn.o_proj.bias");
  for (LayerSpec& layer : model.spec.layers) layer.attention.out_bias = has_out_bias;
  if (!has_out_bias) model.names.layer.o_bias.clear();
  return model;
}

absl::Status CheckFeatureSizes(const Checkpoint& file, const EagleConfig& config,
                               const ModelDescription& model, FeatureDraft* draft) {
  draft->feature_width = model.spec.hidden;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t width, config.TargetHidden(file, model.spec.hidden));
  if (width != model.spec.hidden) {
    return HeadError(file, base::StrCat("reads hidden states of ", width,
                                        ", and those of the model are ", model.spec.hidden));
  }
  const int32_t vocab = draft->model.spec.vocab;
  if (vocab == model.spec.vocab) return absl::OkStatus();
  return HeadError(file, base::StrCat("is for a vocabulary of ", vocab,
                                      " tokens, and the model's has ", model.spec.vocab));
}

namespace {

absl::Status ReadFeatureMap(const Checkpoint& file, const EagleConfig& config,
                            const FeatureLayout& layout, FeatureDraft* draft) {
  const int32_t vocab = draft->model.spec.vocab;
  const std::string name = FirstOf(file, {"d2t", layout.Top("d2t")});
  const CheckpointTensor* head = draft->own_head.empty() ? nullptr : file.Find(draft->own_head);
  const CheckpointTensor* map = file.Find(name);
  const int64_t rows = head != nullptr && !head->shape.empty() ? head->shape[0] : vocab;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t draft_vocab, config.DraftVocab(file, rows, vocab));
  if (map == nullptr && draft_vocab == vocab) return absl::OkStatus();
  if (head == nullptr) {
    return HeadError(file, base::StrCat("has a vocabulary of its own, ", draft_vocab,
                                        " tokens, but no lm_head.weight for it"));
  }
  const TokenMapKind kind = layout.is_gguf ? TokenMapKind::kIds : TokenMapKind::kOffsets;
  HEDDLE_ASSIGN_OR_RETURN(
      draft->target_ids, ReadTokenMap(file, name.empty() ? "d2t" : name, kind, draft_vocab, vocab));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadFeatureTables(const Checkpoint& file, const EagleConfig& config,
                               const FeatureLayout& layout, const ModelDescription& model,
                               FeatureDraft* draft) {
  const ModelSpec& spec = draft->model.spec;
  draft->own_embedding =
      FirstOf(file, {layout.is_gguf ? "token_embd.weight" : layout.Top("embed_tokens.weight"),
                     "embed_tokens.weight"});
  draft->own_head = FirstOf(
      file, {layout.is_gguf ? "output.weight" : "lm_head.weight", layout.Top("lm_head.weight")});
  draft->model.names.embed.clear();
  draft->model.names.lm_head.clear();
  if ((draft->own_embedding.empty() || draft->own_head.empty()) &&
      spec.hidden != model.spec.hidden) {
    return HeadError(file,
                     base::StrCat("has no ", draft->own_head.empty() ? "output head" : "embedding",
                                  " of its own, and its hidden size of ", spec.hidden,
                                  " is not the model's, ", model.spec.hidden));
  }
  if (!draft->own_embedding.empty()) {
    HEDDLE_RETURN_IF_ERROR(CheckTensor(file, draft->own_embedding, {spec.vocab, spec.hidden},
                                       "the model's vocabulary, hidden"));
  }
  HEDDLE_RETURN_IF_ERROR(ReadFeatureMap(file, config, layout, draft));
  if (draft->own_head.empty()) return absl::OkStatus();
  return CheckTensor(file, draft->own_head, {draft->draft_vocab(), spec.hidden},
                     "draft vocabulary, hidden");
}

absl::Status CheckAllUsed(const Checkpoint& file, const FeatureDraft& draft,
                          std::string_view known) {
  std::unordered_set<std::string> used = UsedTensors(draft.model);
  for (const std::string* name :
       {&draft.fuse, &draft.project, &draft.project_bias, &draft.embedding_norm, &draft.state_norm,
        &draft.own_embedding, &draft.own_head}) {
    used.insert(*name);
  }
  used.insert(draft.feature_norms.begin(), draft.feature_norms.end());
  for (const CheckpointTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    // t2d is d2t's inverse; others are buffers, and parts of the model that training kept.
    const bool harmless = name.ends_with("d2t") || name.ends_with("t2d") ||
                          name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight" ||
                          name.starts_with("verifier_");
    if (harmless || used.contains(std::string(name))) continue;
    return absl::UnimplementedError(
        base::StrCat(file.path().string(), ": tensor ", base::Quote(name),
                     " belongs to no network that this version knows (", known, ")"));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
