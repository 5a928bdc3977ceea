#include "engine/family/more_encoder_rows.h"

#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/encoder_classes.h"
#include "engine/family/encoder_gguf.h"
#include "engine/family/encoder_rows.h"
#include "engine/family/row_variants.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// The classes are the authors' own code (jinaai/jina-bert-implementation).
constexpr std::string_view kJinaBertArchitectures[] = {"JinaBertForMaskedLM", "JinaBertModel"};
constexpr std::string_view kJinaBertGguf[] = {"jina-bert-v2"};
constexpr std::string_view kMpnetArchitectures[] = {"MPNetModel", "MPNetForMaskedLM"};
constexpr std::string_view kElectraArchitectures[] = {"ElectraModel", "ElectraForMaskedLM",
                                                      "ElectraForPreTraining"};
constexpr std::string_view kErnieArchitectures[] = {"ErnieModel", "ErnieForMaskedLM"};
constexpr std::string_view kData2VecArchitectures[] = {"Data2VecTextModel",
                                                       "Data2VecTextForMaskedLM"};
// NVIDIA's own class (llama-embed-nemotron).
constexpr std::string_view kLlamaEmbedArchitectures[] = {"LlamaBidirectionalModel"};
constexpr std::string_view kLlamaEmbedGguf[] = {"llama-embed"};

const NameMap& JinaBertNames(const NameMap& bert) {
  static const NameMap names = [&bert] {
    NameMap jina = bert;
    jina.positions.clear();
    LayerNames& layer = jina.layer;
    layer.mlp_post_norm = "encoder.layer.{}.mlp.layernorm.weight";
    layer.mlp_post_norm_bias = "encoder.layer.{}.mlp.layernorm.bias";
    layer.up.clear();
    layer.up_bias.clear();
    layer.gate_up = "encoder.layer.{}.mlp.gated_layers.weight";
    layer.down = "encoder.layer.{}.mlp.wo.weight";
    layer.down_bias = "encoder.layer.{}.mlp.wo.bias";
    return jina;
  }();
  return names;
}

const NameMap& MpnetNames(const NameMap& bert) {
  static const NameMap names = [&bert] {
    NameMap mpnet = bert;
    mpnet.token_types.clear();
    mpnet.distances = "encoder.relative_attention_bias.weight";
    LayerNames& layer = mpnet.layer;
    layer.attn_post_norm = "encoder.layer.{}.attention.LayerNorm.weight";
    layer.attn_post_norm_bias = "encoder.layer.{}.attention.LayerNorm.bias";
    layer.q = "encoder.layer.{}.attention.attn.q.weight";
    layer.k = "encoder.layer.{}.attention.attn.k.weight";
    layer.v = "encoder.layer.{}.attention.attn.v.weight";
    layer.o = "encoder.layer.{}.attention.attn.o.weight";
    layer.q_bias = "encoder.layer.{}.attention.attn.q.bias";
    layer.k_bias = "encoder.layer.{}.attention.attn.k.bias";
    layer.v_bias = "encoder.layer.{}.attention.attn.v.bias";
    layer.o_bias = "encoder.layer.{}.attention.attn.o.bias";
    return mpnet;
  }();
  return names;
}

absl::Status ExpectText(const JsonSource& config, std::string_view key, std::string_view expected) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string value, config.StringOr(key, expected));
  if (value == expected) return absl::OkStatus();
  return config.Unsupported(key, base::Quote(value), base::StrCat("supported is ", expected));
}

void ApplyAlibi(ModelSpec* spec) {
  ApplyBert(spec);
  spec->learned_positions = false;
  spec->distances = DistanceRule::kAlibi;
}

absl::Status RefineJinaBert(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr int64_t kMostTypes = 1 << 10;
  HEDDLE_RETURN_IF_ERROR(ExpectText(config, "position_embedding_type", "alibi"));
  HEDDLE_RETURN_IF_ERROR(ExpectText(config, "feed_forward_type", "geglu"));
  // It says how the class's own encode() pools; modules.json or a mean say the same.
  HEDDLE_RETURN_IF_ERROR(ExpectText(config, "emb_pooler", "mean"));
  const nlohmann::json* code = config.Find("auto_map");
  if (code != nullptr && code->dump().find("qk-post-norm") != std::string::npos) {
    return config.Unsupported("auto_map", "jina-bert-v2-qk-post-norm",
                              "layer norms of queries and keys are not supported");
  }
  HEDDLE_ASSIGN_OR_RETURN(spec->token_types, config.DimOr("type_vocab_size", kMostTypes, 2));
  ApplyAlibi(spec);
  return absl::OkStatus();
}

absl::Status RefineGgufJinaBert(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                                NameMap* names) {
  constexpr std::string_view kMaxBias = "attention.max_alibi_bias";
  for (const std::string_view norm : {"blk.0.attn_q_norm.weight", "blk.0.attn_norm_2.weight"}) {
    if (find(norm) == nullptr) continue;
    return absl::UnimplementedError(base::StrCat(source.file(),
                                                 ": layer norms of queries and keys (tensor ",
                                                 base::Quote(norm), ") are not supported"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const double largest, source.PositiveOr(kMaxBias, kMaxFactor, 8.0));
  if (largest != 8.0) return source.Unsupported(kMaxBias, base::StrCat(largest), "expected 8");
  HEDDLE_RETURN_IF_ERROR(RefineGgufBert(source, find, spec, names));
  ApplyAlibi(spec);
  names->layer.gate_bias.clear();
  names->layer.up_bias.clear();
  return absl::OkStatus();
}

// A table of distances that all layers share, and RoBERTa's numbers of positions.
absl::Status RefineMpnet(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kBuckets = "relative_attention_num_buckets";
  constexpr int32_t kMostBuckets = 1 << 10;
  HEDDLE_ASSIGN_OR_RETURN(spec->distance_buckets, config.DimOr(kBuckets, kMostBuckets, 32));
  if (spec->distance_buckets % 4 != 0) {
    return config.Error(kBuckets, base::StrCat(spec->distance_buckets), "a multiple of 4");
  }
  HEDDLE_RETURN_IF_ERROR(NumberBehindPadding(config, spec));
  ApplyBert(spec);
  spec->distances = DistanceRule::kBuckets;
  return absl::OkStatus();
}

absl::Status RefineElectra(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t width,
                          config.DimOr("embedding_size", kMaxHidden, spec->hidden));
  if (width != spec->hidden) {
    return config.Unsupported(
        "embedding_size", base::StrCat(width),
        base::StrCat("expected that of \"hidden_size\" (", spec->hidden, ")"));
  }
  return RefineBert(config, spec, names);
}

absl::Status RefineErnie(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const bool has_tasks, config.BoolOr("use_task_id", false));
  if (has_tasks) return config.Unsupported("use_task_id", "true", "expected false");
  static_cast<void>(config.Has("task_type_vocab_size"));
  return RefineBert(config, spec, names);
}

// The pooling of its own class, which folders of sentence-transformers say again.
absl::Status RefineLlamaEmbed(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(ExpectText(config, "pooling", "avg"));
  for (LayerSpec& layer : spec->layers) layer.attention.both_ways = true;
  return absl::OkStatus();
}

// A first token's state, a matrix with GELU, the classes.
absl::Status ElectraClasses(const JsonSource& config, std::string_view prefix, int32_t hidden,
                            int32_t n_labels, PooledOutput* output) {
  HEDDLE_RETURN_IF_ERROR(RobertaClasses(config, prefix, hidden, n_labels, output));
  output->layers.front().activation = HeadActivation::kGelu;
  return absl::OkStatus();
}

// Its config.json has BERT's model_type; the class's name tells them apart.
Family JinaBert(const FamilyRows& rows) {
  Family jina = rows.Variant("bert", "jina_bert", kJinaBertArchitectures, kJinaBertGguf);
  jina.gated = true;
  jina.max_context = 8192;
  jina.names = &JinaBertNames(*jina.names);
  jina.refine = RefineJinaBert;
  jina.refine_gguf = RefineGgufJinaBert;
  return jina;
}

Family Mpnet(const FamilyRows& rows) {
  Family mpnet = rows.Variant("bert", "mpnet", kMpnetArchitectures);
  mpnet.prefix = "mpnet.";
  mpnet.names = &MpnetNames(*mpnet.names);
  mpnet.refine = RefineMpnet;
  mpnet.classifier = RobertaClasses;
  return mpnet;
}

Family Electra(const FamilyRows& rows) {
  Family electra = rows.Variant("bert", "electra", kElectraArchitectures);
  electra.prefix = "electra.";
  electra.refine = RefineElectra;
  electra.classifier = ElectraClasses;
  return electra;
}

Family Ernie(const FamilyRows& rows) {
  Family ernie = rows.Variant("bert", "ernie", kErnieArchitectures);
  ernie.prefix = "ernie.";
  ernie.refine = RefineErnie;
  return ernie;
}

Family Data2Vec(const FamilyRows& rows) {
  Family data = rows.Variant("roberta", "data2vec-text", kData2VecArchitectures);
  data.prefix = "data2vec_text.";
  return data;
}

Family LlamaEmbed(const FamilyRows& rows) {
  Family embed =
      rows.Variant("eurobert", "llama_bidirec", kLlamaEmbedArchitectures, kLlamaEmbedGguf);
  embed.gguf_rope_layout = RopeLayout::kInterleaved;
  embed.norm_eps = 1e-6;
  embed.max_context = 2048;
  embed.refine = RefineLlamaEmbed;
  embed.classifier = nullptr;
  return embed;
}

}  // namespace

absl::Status NumberBehindPadding(const JsonSource& config, ModelSpec* spec) {
  int64_t padding = 1;
  if (config.Has("pad_token_id")) {
    HEDDLE_ASSIGN_OR_RETURN(padding, config.Int("pad_token_id"));
  }
  if (padding < 0 || padding + 2 > spec->max_context) {
    return config.Error(
        "pad_token_id", base::StrCat(padding),
        base::StrCat("a token id below \"max_position_embeddings\" (", spec->max_context, ")"));
  }
  spec->position_offset = static_cast<int32_t>(padding) + 1;
  spec->max_context -= spec->position_offset;
  return absl::OkStatus();
}

std::vector<Family> MoreEncoderRows(std::span<const Family> encoders) {
  const FamilyRows rows(encoders);
  return {JinaBert(rows), Mpnet(rows),    Electra(rows),
          Ernie(rows),    Data2Vec(rows), LlamaEmbed(rows)};
}

}  // namespace heddle::engine
