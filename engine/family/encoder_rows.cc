#include "engine/family/encoder_rows.h"

#include <algorithm>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/encoder_classes.h"
#include "engine/family/encoder_gguf.h"
#include "engine/family/family_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kBertArchitectures[] = {"BertModel", "BertForMaskedLM",
                                                   "BertForPreTraining"};
constexpr std::string_view kRobertaArchitectures[] = {"RobertaModel", "RobertaForMaskedLM"};
constexpr std::string_view kXlmRobertaArchitectures[] = {"XLMRobertaModel",
                                                         "XLMRobertaForMaskedLM"};
constexpr std::string_view kCamembertArchitectures[] = {"CamembertModel", "CamembertForMaskedLM"};
constexpr std::string_view kDistilBertArchitectures[] = {"DistilBertModel",
                                                         "DistilBertForMaskedLM"};
constexpr std::string_view kModernBertArchitectures[] = {"ModernBertModel",
                                                         "ModernBertForMaskedLM"};
constexpr std::string_view kNomicBertArchitectures[] = {"NomicBertModel", "NomicBertForMaskedLM"};
constexpr std::string_view kEuroBertArchitectures[] = {"EuroBertModel", "EuroBertForMaskedLM"};
constexpr std::string_view kEmbeddingGemmaArchitectures[] = {"Gemma3TextModel"};
constexpr std::string_view kBertGguf[] = {"bert"};
constexpr std::string_view kModernBertGguf[] = {"modern-bert"};
constexpr std::string_view kNomicBertGguf[] = {"nomic-bert"};
constexpr std::string_view kEuroBertGguf[] = {"eurobert"};
constexpr std::string_view kEmbeddingGemmaGguf[] = {"gemma-embedding"};

const NameMap& BertNames() {
  static const NameMap names = {
      .embed = "embeddings.word_embeddings.weight",
      .positions = "embeddings.position_embeddings.weight",
      .token_types = "embeddings.token_type_embeddings.weight",
      .embed_norm = "embeddings.LayerNorm.weight",
      .embed_norm_bias = "embeddings.LayerNorm.bias",
      .layer = {.attn_post_norm = "encoder.layer.{}.attention.output.LayerNorm.weight",
                .attn_post_norm_bias = "encoder.layer.{}.attention.output.LayerNorm.bias",
                .q = "encoder.layer.{}.attention.self.query.weight",
                .k = "encoder.layer.{}.attention.self.key.weight",
                .v = "encoder.layer.{}.attention.self.value.weight",
                .q_bias = "encoder.layer.{}.attention.self.query.bias",
                .k_bias = "encoder.layer.{}.attention.self.key.bias",
                .v_bias = "encoder.layer.{}.attention.self.value.bias",
                .o = "encoder.layer.{}.attention.output.dense.weight",
                .o_bias = "encoder.layer.{}.attention.output.dense.bias",
                .mlp_post_norm = "encoder.layer.{}.output.LayerNorm.weight",
                .mlp_post_norm_bias = "encoder.layer.{}.output.LayerNorm.bias",
                .up = "encoder.layer.{}.intermediate.dense.weight",
                .down = "encoder.layer.{}.output.dense.weight",
                .up_bias = "encoder.layer.{}.intermediate.dense.bias",
                .down_bias = "encoder.layer.{}.output.dense.bias"}};
  return names;
}

const NameMap& DistilBertNames() {
  static const NameMap names = {
      .embed = "embeddings.word_embeddings.weight",
      .positions = "embeddings.position_embeddings.weight",
      .embed_norm = "embeddings.LayerNorm.weight",
      .embed_norm_bias = "embeddings.LayerNorm.bias",
      .layer = {.attn_post_norm = "transformer.layer.{}.sa_layer_norm.weight",
                .attn_post_norm_bias = "transformer.layer.{}.sa_layer_norm.bias",
                .q = "transformer.layer.{}.attention.q_lin.weight",
                .k = "transformer.layer.{}.attention.k_lin.weight",
                .v = "transformer.layer.{}.attention.v_lin.weight",
                .q_bias = "transformer.layer.{}.attention.q_lin.bias",
                .k_bias = "transformer.layer.{}.attention.k_lin.bias",
                .v_bias = "transformer.layer.{}.attention.v_lin.bias",
                .o = "transformer.layer.{}.attention.out_lin.weight",
                .o_bias = "transformer.layer.{}.attention.out_lin.bias",
                .mlp_post_norm = "transformer.layer.{}.output_layer_norm.weight",
                .mlp_post_norm_bias = "transformer.layer.{}.output_layer_norm.bias",
                .up = "transformer.layer.{}.ffn.lin1.weight",
                .down = "transformer.layer.{}.ffn.lin2.weight",
                .up_bias = "transformer.layer.{}.ffn.lin1.bias",
                .down_bias = "transformer.layer.{}.ffn.lin2.bias"}};
  return names;
}

const NameMap& ModernBertNames() {
  static const NameMap names = {.embed = "embeddings.tok_embeddings.weight",
                                .embed_norm = "embeddings.norm.weight",
                                .embed_norm_bias = "embeddings.norm.bias",
                                .final_norm = "final_norm.weight",
                                .final_norm_bias = "final_norm.bias",
                                .layer = {.attn_norm = "layers.{}.attn_norm.weight",
                                          .attn_norm_bias = "layers.{}.attn_norm.bias",
                                          .qkv = "layers.{}.attn.Wqkv.weight",
                                          .qkv_bias = "layers.{}.attn.Wqkv.bias",
                                          .o = "layers.{}.attn.Wo.weight",
                                          .o_bias = "layers.{}.attn.Wo.bias",
                                          .mlp_norm = "layers.{}.mlp_norm.weight",
                                          .mlp_norm_bias = "layers.{}.mlp_norm.bias",
                                          .gate_up = "layers.{}.mlp.Wi.weight",
                                          .down = "layers.{}.mlp.Wo.weight"}};
  return names;
}

const NameMap& NomicBertNames() {
  static const NameMap names = {.embed = "embeddings.word_embeddings.weight",
                                .token_types = "embeddings.token_type_embeddings.weight",
                                .embed_norm = "emb_ln.weight",
                                .embed_norm_bias = "emb_ln.bias",
                                .layer = {.attn_post_norm = "encoder.layers.{}.norm1.weight",
                                          .attn_post_norm_bias = "encoder.layers.{}.norm1.bias",
                                          .qkv = "encoder.layers.{}.attn.Wqkv.weight",
                                          .o = "encoder.layers.{}.attn.out_proj.weight",
                                          .mlp_post_norm = "encoder.layers.{}.norm2.weight",
                                          .mlp_post_norm_bias = "encoder.layers.{}.norm2.bias",
                                          .gate = "encoder.layers.{}.mlp.fc12.weight",
                                          .up = "encoder.layers.{}.mlp.fc11.weight",
                                          .down = "encoder.layers.{}.mlp.fc2.weight"}};
  return names;
}

// Refuses what makes a decoder of an encoder's name, and positions that are not absolute.
absl::Status RefuseDecoder(const JsonSource& config) {
  HEDDLE_ASSIGN_OR_RETURN(const bool is_decoder, config.BoolOr("is_decoder", false));
  if (is_decoder) {
    return config.Unsupported("is_decoder", "true", "this family is run as an encoder");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string positions,
                          config.StringOr("position_embedding_type", "absolute"));
  if (positions == "absolute") return absl::OkStatus();
  return config.Unsupported("position_embedding_type", base::Quote(positions),
                            "supported is \"absolute\"");
}

absl::Status RefineRoberta(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kTasks = "lora_adaptations";
  if (const json* tasks = config.Find(kTasks); tasks != nullptr) {
    return config.Unsupported(
        kTasks, JsonSource::Show(*tasks),
        "supported is jina-embeddings-v3 as transformers has it (JinaEmbeddingsV3Model), where "
        "each task is an adapter of its own");
  }
  HEDDLE_RETURN_IF_ERROR(RefineBert(config, spec, names));
  return NumberBehindPadding(config, spec);
}

absl::Status RefineDistilBert(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(RefuseDecoder(config));
  ApplyBert(spec);
  return absl::OkStatus();
}

// Whether each layer sees all of the text.
absl::StatusOr<std::vector<bool>> ModernBertGlobals(const JsonSource& config, int32_t n_layers) {
  std::vector<bool> globals;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t every,
                          config.DimOr("global_attn_every_n_layers", kMaxLayers, 3));
  const json* types = config.Find("layer_types");
  if (types == nullptr) {
    for (int32_t i = 0; i < n_layers; ++i) globals.push_back(i % every == 0);
    return globals;
  }
  if (!types->is_array() || types->size() != static_cast<size_t>(n_layers)) {
    return config.Error("layer_types", JsonSource::Show(*types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  for (const json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return config.Unsupported("layer_types", JsonSource::Show(type),
                                "supported are \"full_attention\" and \"sliding_attention\"");
    }
    globals.push_back(type == "full_attention");
  }
  return globals;
}

absl::StatusOr<double> LocalTheta(const JsonSource& config) {
  HEDDLE_ASSIGN_OR_RETURN(double theta, config.PositiveOr("local_rope_theta", kMaxTheta, 10000.0));
  HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> nested, config.Object("rope_parameters"));
  if (!nested.has_value()) return theta;
  HEDDLE_ASSIGN_OR_RETURN(nested, nested->Object("sliding_attention"));
  if (!nested.has_value()) return theta;
  HEDDLE_ASSIGN_OR_RETURN(const std::string type, nested->StringOr("rope_type", "default"));
  if (type != "default") {
    return nested->Unsupported("rope_type", base::Quote(type), "expected default");
  }
  return nested->PositiveOr("rope_theta", kMaxTheta, theta);
}

absl::Status RefineModernBert(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  static_cast<void>(config.Has("position_embedding_type"));  // the class does not look at it
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> globals,
                          ModernBertGlobals(config, spec->n_layers()));
  HEDDLE_ASSIGN_OR_RETURN(const double theta, LocalTheta(config));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t local, config.DimOr("local_attention", kMaxContext, 128));
  HEDDLE_ASSIGN_OR_RETURN(const bool norm_bias, config.BoolOr("norm_bias", false));
  spec->embedding_norm = true;
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    AttentionSpec& attention = spec->layers[i].attention;
    attention.both_ways = true;
    if (globals[i]) continue;
    attention.window = local / 2 + 1;
    attention.rope = RopeSpec{.theta = static_cast<float>(theta),
                              .rotary_dim = attention.head_dim,
                              .original_max_position = spec->max_context};
  }
  // The embedding's norm is the first layer's.
  spec->layers.front().attention_input = AttentionInput::kRawStream;
  if (norm_bias) return absl::OkStatus();
  for (std::string* bias : {&names->embed_norm_bias, &names->final_norm_bias,
                            &names->layer.attn_norm_bias, &names->layer.mlp_norm_bias}) {
    bias->clear();
  }
  return absl::OkStatus();
}

// Refuses what the older form of config.json may ask for and the row cannot express.
absl::Status RefuseOtherNomic(const JsonSource& config) {
  for (const std::string_view key :
       {"prenorm", "causal", "rotary_emb_interleaved", "qkv_proj_bias", "mlp_fc1_bias",
        "mlp_fc2_bias", "use_rms_norm", "parallel_block"}) {
    HEDDLE_ASSIGN_OR_RETURN(const bool is_on, config.BoolOr(key, false));
    if (is_on) return config.Unsupported(key, "true", "expected false");
  }
  constexpr std::string_view kExperts = "moe_every_n_layers";
  if (config.Has(kExperts)) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t every, config.Int(kExperts));
    if (every != 0) return config.Unsupported(kExperts, base::StrCat(every), "expected 0");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string name, config.StringOr("activation_function", "swiglu"));
  if (name == "swiglu") return absl::OkStatus();
  return config.Unsupported("activation_function", base::Quote(name), "supported is swiglu");
}

// Positions beyond the trained ones are scaled by the text's length ("rotary_scaling_factor"), for
// which the decoder has no op: the model is served up to that length.
absl::Status RefineNomicBert(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineBert(config, spec, names));
  static_cast<void>(config.Has("head_dim"));
  if (!config.Has("n_embd")) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(RefuseOtherNomic(config));
  static_cast<void>(config.Has("rotary_scaling_factor"));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t trained,
                          config.DimOr("max_trained_positions", kMaxContext, 2048));
  spec->max_context = std::min(spec->max_context, trained);
  return absl::OkStatus();
}

absl::Status RefineEuroBert(const JsonSource&, ModelSpec* spec, NameMap*) {
  for (LayerSpec& layer : spec->layers) layer.attention.both_ways = true;
  return absl::OkStatus();
}

// The window is a width: half of it lies on either side of a row.
absl::Status RefineEmbeddingGemma(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGemma3BothWays(config, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const bool both_ways,
                          config.BoolOr("use_bidirectional_attention", false));
  if (!both_ways) return absl::OkStatus();
  for (LayerSpec& layer : spec->layers) {
    AttentionSpec& attention = layer.attention;
    attention.both_ways = true;
    if (attention.window > 0) attention.window = attention.window / 2 + 1;
  }
  return absl::OkStatus();
}

Family Bert() {
  Family bert;
  bert.name = bert.model_type = "bert";
  bert.architectures = kBertArchitectures;
  bert.keys.n_kv_heads = bert.keys.head_dim = "";
  bert.keys.norm_eps = "layer_norm_eps";
  bert.activation = "gelu";
  bert.norm_eps = 1e-12;
  bert.tied_embeddings = true;
  bert.max_context = 512;
  bert.norm = NormKind::kLayer;
  bert.pre_norm = bert.gated = bert.rope = false;
  bert.qkv_bias = bert.out_bias = bert.mlp_bias = Flag::Always();
  bert.is_encoder = true;
  bert.prefix = "bert.";
  bert.names = &BertNames();
  bert.refine = RefineBert;
  bert.classifier = BertClasses;
  bert.gguf_architectures = kBertGguf;
  bert.refine_gguf = RefineGgufBert;
  return bert;
}

Family Roberta(std::string_view name, std::span<const std::string_view> architectures) {
  Family roberta = Bert();
  roberta.name = roberta.model_type = name;
  roberta.architectures = architectures;
  roberta.gguf_architectures = {};
  roberta.prefix = "roberta.";
  roberta.refine = RefineRoberta;
  roberta.classifier = RobertaClasses;
  return roberta;
}

Family DistilBert() {
  Family distilbert = Bert();
  distilbert.name = distilbert.model_type = "distilbert";
  distilbert.architectures = kDistilBertArchitectures;
  distilbert.gguf_architectures = {};
  distilbert.keys.hidden = "dim";
  distilbert.keys.n_layers = "n_layers";
  distilbert.keys.n_heads = "n_heads";
  distilbert.keys.inter = "hidden_dim";
  distilbert.keys.activation = "activation";
  distilbert.prefix = "distilbert.";
  distilbert.names = &DistilBertNames();
  distilbert.refine = RefineDistilBert;
  distilbert.classifier = DistilBertClasses;
  return distilbert;
}

Family ModernBert() {
  Family modern = Bert();
  modern.name = modern.model_type = "modernbert";
  modern.architectures = kModernBertArchitectures;
  modern.keys.norm_eps = "norm_eps";
  modern.keys.activation = "hidden_activation";
  modern.keys.rope_theta = "global_rope_theta";
  modern.norm_eps = 1e-5;
  modern.rope_theta = 160000.0;
  modern.max_context = 8192;
  modern.pre_norm = modern.gated = modern.rope = true;
  modern.qkv_bias = modern.out_bias = Flag::Key("attention_bias", false);
  modern.mlp_bias = Flag::Never();
  modern.prefix = "model.";
  modern.names = &ModernBertNames();
  modern.refine = RefineModernBert;
  modern.classifier = ModernBertClasses;
  modern.gguf_architectures = kModernBertGguf;
  modern.refine_gguf = RefineGgufModernBert;
  return modern;
}

Family NomicBert() {
  Family nomic = Bert();
  nomic.name = nomic.model_type = "nomic_bert";
  nomic.architectures = kNomicBertArchitectures;
  nomic.unless_key = "n_embd";
  nomic.activation = "silu";
  nomic.rope_theta = 1000.0;
  nomic.max_context = 2048;
  nomic.gated = nomic.rope = true;
  nomic.qkv_bias = nomic.out_bias = nomic.mlp_bias = Flag::Never();
  nomic.prefix = "nomic_bert.";
  nomic.names = &NomicBertNames();
  nomic.refine = RefineNomicBert;
  nomic.gguf_architectures = kNomicBertGguf;
  return nomic;
}

// config.json as it was before transformers had the class: with GPT-2's keys.
Family OlderNomicBert() {
  Family nomic = NomicBert();
  nomic.unless_key = {};
  nomic.keys.hidden = "n_embd";
  nomic.keys.n_layers = "n_layer";
  nomic.keys.n_heads = "n_head";
  nomic.keys.inter = "n_inner";
  nomic.keys.max_context = "n_positions";
  nomic.keys.norm_eps = "layer_norm_epsilon";
  nomic.keys.rope_theta = "rotary_emb_base";
  nomic.keys.rotary_part = "rotary_emb_fraction";
  nomic.gguf_architectures = {};
  return nomic;
}

Family EuroBert(const Family& llama) {
  Family euro = llama;
  euro.name = euro.model_type = "eurobert";
  euro.architectures = kEuroBertArchitectures;
  euro.gguf_architectures = kEuroBertGguf;
  euro.gguf_rope_layout = RopeLayout::kHalf;
  euro.gguf_renormalise = false;
  euro.norm_eps = 1e-5;
  euro.max_context = 8192;
  euro.is_encoder = true;
  euro.refine = RefineEuroBert;
  euro.classifier = EuroBertClasses;
  return euro;
}

Family EmbeddingGemma(const Family& gemma3) {
  Family gemma = gemma3;
  gemma.name = "embedding_gemma";
  gemma.architectures = kEmbeddingGemmaArchitectures;
  gemma.gguf_architectures = kEmbeddingGemmaGguf;
  gemma.is_encoder = true;
  gemma.refine = RefineEmbeddingGemma;
  gemma.refine_gguf = RefineGgufEmbeddingGemma;
  return gemma;
}

}  // namespace

absl::Status RefineBert(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr int64_t kMostTypes = 1 << 10;
  HEDDLE_RETURN_IF_ERROR(RefuseDecoder(config));
  HEDDLE_ASSIGN_OR_RETURN(spec->token_types, config.DimOr("type_vocab_size", kMostTypes, 2));
  ApplyBert(spec);
  return absl::OkStatus();
}

void ApplyBert(ModelSpec* spec) {
  spec->embedding_norm = true;
  spec->final_norm = false;
  for (LayerSpec& layer : spec->layers) {
    layer.attention.both_ways = true;
    layer.stream_norm = true;
  }
}

std::vector<Family> EncoderRows(const Family& gemma3, const Family& llama) {
  return {Bert(),
          Roberta("roberta", kRobertaArchitectures),
          Roberta("xlm-roberta", kXlmRobertaArchitectures),
          Roberta("camembert", kCamembertArchitectures),
          DistilBert(),
          ModernBert(),
          NomicBert(),
          OlderNomicBert(),
          EuroBert(llama),
          EmbeddingGemma(gemma3)};
}

}  // namespace heddle::engine
