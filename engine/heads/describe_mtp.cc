// MTP layers in the model's own files. They have the structure of the model's last layer, and take
// its final hidden state, behind the last norm, beside the embedding of the token that was drawn.
#include <cstring>
#include <optional>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/heads/describe_heads.h"
#include "engine/heads/head_tensors.h"
#include "engine/heads/open_heads.h"

namespace heddle::engine {
namespace {

// How one kind of file names the parts of an MTP layer. `layer` stands for the prefix of the
// layer's tensors, which follows from the model's names or is fixed.
struct MtpNames {
  std::string layer;
  std::string project;
  std::string embedding_norm;
  std::string state_norm;
  std::string final_norm;
  std::string embedding;  // empty: always the model's
  std::string head;
  bool keeps_normed = false;
};

// The part of the names of a model's layers before their index, such as "model.layers.".
std::string LayerPrefix(const ModelDescription& model) {
  const LayerNames& layer = model.names.layer;
  for (const std::string* name : {&layer.o, &layer.mlp_norm, &layer.attn_norm, &layer.down}) {
    const size_t at = name->find("{}.");
    if (at != std::string::npos) return name->substr(0, at);
  }
  return "";
}

// Layer n of the model's layers, as DeepSeek-V3 and GLM-4.5 have it.
MtpNames DeepseekNames(const std::string& layer) {
  return {.layer = layer,
          .project = layer + "eh_proj.weight",
          .embedding_norm = layer + "enorm.weight",
          .state_norm = layer + "hnorm.weight",
          .final_norm = layer + "shared_head.norm.weight",
          .embedding = layer + "embed_tokens.weight",
          .head = layer + "shared_head.head.weight"};
}

// llama.cpp's names, of all families.
MtpNames GgufMtpNames(const std::string& layer, bool is_qwen) {
  return {.layer = layer,
          .project = layer + "nextn.eh_proj.weight",
          .embedding_norm = layer + "nextn.enorm.weight",
          .state_norm = layer + "nextn.hnorm.weight",
          .final_norm = layer + "nextn.shared_head_norm.weight",
          .embedding = layer + "nextn.embed_tokens.weight",
          .head = layer + "nextn.shared_head_head.weight",
          .keeps_normed = is_qwen};
}

MtpNames QwenNames() {
  return {.layer = "mtp.layers.0.",
          .project = "mtp.fc.weight",
          .embedding_norm = "mtp.pre_fc_norm_embedding.weight",
          .state_norm = "mtp.pre_fc_norm_hidden.weight",
          .final_norm = "mtp.norm.weight",
          .embedding = "",
          .head = "",
          .keeps_normed = true};
}

std::optional<MtpNames> FindNames(const Checkpoint& target, const ModelDescription& model) {
  const std::string layer = base::StrCat(LayerPrefix(model), model.spec.n_layers(), ".");
  const bool is_qwen = model.spec.family.starts_with("qwen");
  for (const MtpNames& names : {DeepseekNames(layer), GgufMtpNames(layer, is_qwen), QwenNames()}) {
    if (target.Find(names.project) != nullptr) return names;
  }
  return std::nullopt;
}

// Whether `own` repeats the model's table, as files do that were written with every layer complete:
// then it is not loaded again. It looks at 64 of the rows.
bool RepeatsTable(const Checkpoint& target, const std::string& own, const std::string& table) {
  const CheckpointTensor* a = target.Find(own);
  const CheckpointTensor* b = target.Find(table);
  if (a == nullptr || b == nullptr || a->shape != b->shape || a->type_name != b->type_name ||
      a->data.size() != b->data.size() || a->shape.empty() || a->shape[0] < 1) {
    return false;
  }
  constexpr int64_t kCompared = 64;
  const int64_t rows = a->shape[0];
  const auto row_bytes = static_cast<size_t>(a->data.size() / static_cast<size_t>(rows));
  for (int64_t i = 0; i < kCompared; ++i) {
    const size_t at = static_cast<size_t>(i * rows / kCompared) * row_bytes;
    if (std::memcmp(a->data.data() + at, b->data.data() + at, row_bytes) != 0) return false;
  }
  return true;
}

}  // namespace

bool HasMtp(const Checkpoint& target, const ModelDescription& model) {
  return FindNames(target, model).has_value();
}

absl::StatusOr<FeatureDraft> DescribeMtp(const Checkpoint& target, const ModelDescription& model) {
  const std::optional<MtpNames> names = FindNames(target, model);
  if (!names.has_value()) {
    return HeadError(target,
                     base::StrCat("has no MTP layer: neither ", base::Quote(LayerPrefix(model)),
                                  model.spec.n_layers(),
                                  " with eh_proj (or nextn.eh_proj) nor mtp.fc. Files are often "
                                  "published without them, or the model was made without"));
  }
  FeatureDraft draft;
  draft.kind = "mtp";
  draft.features = {DraftTraits::kFinalNormed};
  draft.feature_width = model.spec.hidden;
  draft.keeps_normed = names->keeps_normed;
  draft.model.spec = model.spec;
  draft.model.spec.layers = {model.spec.layers.back()};
  // A draft reads everything: what it proposes is verified in any case.
  draft.model.spec.layers.front().attention.mla.indexer = {};
  draft.model.spec.learned_positions = false;
  draft.model.names = model.names;
  draft.model.names.positions.clear();
  // GGUF files leave it out where it repeats the model's.
  if (target.gguf() == nullptr || target.Find(names->final_norm) != nullptr) {
    draft.model.names.final_norm = names->final_norm;
  }
  draft.model.names.final_norm_bias.clear();
  const std::string pattern = LayerPrefix(model) + "{}.";
  draft.model.names.layer.ForEach([&](std::string* name) {
    if (name->starts_with(pattern)) name->replace(0, pattern.size(), names->layer);
  });
  draft.project = names->project;
  draft.embedding_norm = names->embedding_norm;
  draft.state_norm = names->state_norm;
  const auto own = [&](const std::string& name, const std::string& table) {
    const bool has = !name.empty() && target.Find(name) != nullptr;
    return has && !RepeatsTable(target, name, table) ? name : std::string();
  };
  const NameMap& tables = model.names;
  draft.own_embedding = own(names->embedding, tables.embed);
  draft.own_head = own(names->head, tables.lm_head.empty() ? tables.embed : tables.lm_head);
  draft.model.names.embed.clear();
  draft.model.names.lm_head.clear();

  const int64_t hidden = model.spec.hidden;
  const int64_t vocab = model.spec.vocab;
  HEDDLE_RETURN_IF_ERROR(
      CheckTensor(target, draft.project, {hidden, 2 * hidden}, "hidden, 2 hidden"));
  HEDDLE_RETURN_IF_ERROR(CheckTensor(target, draft.embedding_norm, {hidden}, "hidden"));
  HEDDLE_RETURN_IF_ERROR(CheckTensor(target, draft.state_norm, {hidden}, "hidden"));
  for (const std::string* table : {&draft.own_embedding, &draft.own_head}) {
    if (table->empty()) continue;
    HEDDLE_RETURN_IF_ERROR(CheckTensor(target, *table, {vocab, hidden}, "vocab, hidden"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckUsedTensors(target, draft.model));
  return draft;
}

}  // namespace heddle::engine
