// Reads the hyperparameters of a GGUF file. Keys: ggml's docs/gguf.md, section "LLM".
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/encoder_gguf.h"
#include "engine/family/family_names.h"
#include "engine/family/known_keys.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kHeads = "attention.head_count";
constexpr std::string_view kLatentRank = "attention.kv_lora_rank";
constexpr std::string_view kKvHeads = "attention.head_count_kv";

// The vocabulary's size has its own key; otherwise it is that of the tokenizer.
absl::StatusOr<int32_t> ReadVocab(const GgufSource& source) {
  if (source.Has("vocab_size")) return source.Dim("vocab_size", kMaxVocab);
  int64_t tokens = source.gguf().ArrayLength("tokenizer.ggml.tokens");
  if (tokens < 1 || tokens > kMaxVocab) {
    return source.Error("vocab_size", "missing", "it, or the array \"tokenizer.ggml.tokens\"");
  }
  return static_cast<int32_t>(tokens);
}

absl::StatusOr<int32_t> ReadHeadDim(const GgufSource& source, const Hyperparameters& values) {
  // With latent attention the head dimension is the rotated part; see RefineGgufDeepseek.
  if (source.Has(kLatentRank)) return source.Dim("rope.dimension_count", kMaxHeadDim);
  if (source.Has("attention.key_length")) {
    HEDDLE_ASSIGN_OR_RETURN(int32_t key, source.Dim("attention.key_length", kMaxHeadDim));
    HEDDLE_ASSIGN_OR_RETURN(int32_t value,
                            source.DimOr("attention.value_length", kMaxHeadDim, key));
    if (key == value) return key;
    return source.Unsupported("attention.value_length", base::StrCat(value),
                              base::StrCat("expected \"attention.key_length\" (", key, ")"));
  }
  if (values.hidden % values.n_heads != 0) {
    return source.Error(kHeads, base::StrCat(values.n_heads),
                        base::StrCat("a divisor of \"embedding_length\" (", values.hidden, ")"));
  }
  return values.hidden / values.n_heads;
}

// Reads an integer from 1 to max; if layers differ and have a list, its largest (RefineGgufDeci
// reads the others).
absl::StatusOr<int32_t> LargestDim(const GgufSource& source, std::string_view key, int64_t max) {
  if (!source.IsArray(key)) return source.Dim(key, max);
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> all, source.Ints(key));
  int64_t largest = 0;
  for (int64_t value : all) {
    if (value < 0 || value > max) {
      return source.Error(key, base::StrCat(value), base::StrCat("integers from 0 to ", max));
    }
    largest = std::max(largest, value);
  }
  if (largest > 0) return static_cast<int32_t>(largest);
  return source.Error(key, "an array of zeros", "one above zero");
}

// Files of models whose layers all have experts may leave it out and give only the experts' width.
absl::StatusOr<int32_t> ReadInter(const GgufSource& source) {
  constexpr std::string_view kInter = "feed_forward_length";
  constexpr std::string_view kExpertInter = "expert_feed_forward_length";
  const bool experts_only = !source.Has(kInter) && source.Has(kExpertInter);
  return LargestDim(source, experts_only ? kExpertInter : kInter, kMaxInter);
}

// Layers that predict several tokens at a time (MTP) are counted as the last blocks.
absl::StatusOr<int32_t> ReadLayers(const GgufSource& source) {
  constexpr std::string_view kPredict = "nextn_predict_layers";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t blocks, source.Dim("block_count", kMaxLayers));
  if (!source.Has(kPredict)) return blocks;
  HEDDLE_ASSIGN_OR_RETURN(const int64_t predict, source.Int(kPredict));
  if (predict < 0 || predict >= blocks) {
    return source.Error(kPredict, base::StrCat(predict),
                        base::StrCat("from 0 to ", blocks - 1, ", below \"block_count\""));
  }
  return blocks - static_cast<int32_t>(predict);
}

absl::Status ReadSizes(const GgufSource& source, const Family& family, Hyperparameters* values) {
  HEDDLE_ASSIGN_OR_RETURN(values->hidden, source.Dim("embedding_length", kMaxHidden));
  HEDDLE_ASSIGN_OR_RETURN(values->n_layers, ReadLayers(source));
  HEDDLE_ASSIGN_OR_RETURN(values->vocab, ReadVocab(source));
  HEDDLE_ASSIGN_OR_RETURN(values->max_context, source.Dim("context_length", kMaxContext));
  if (!family.attends) {
    SetNoHeads(values);
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(values->n_heads, LargestDim(source, kHeads, kMaxHeads));
  values->n_kv_heads = values->n_heads;
  if (source.Has(kKvHeads)) {
    HEDDLE_ASSIGN_OR_RETURN(values->n_kv_heads, LargestDim(source, kKvHeads, kMaxHeads));
  }
  HEDDLE_ASSIGN_OR_RETURN(values->head_dim, ReadHeadDim(source, *values));
  HEDDLE_RETURN_IF_ERROR(CheckHeads(source, kHeads, kKvHeads, *values));
  HEDDLE_ASSIGN_OR_RETURN(values->inter, ReadInter(source));
  return absl::OkStatus();
}

// Reads a table of divisors that the converter has computed (Llama 3's scaling, LongRoPE).
absl::Status ReadDivisors(const GgufSource& source, const TensorFinder& find, std::string_view name,
                          RopeSpec* rope) {
  const CheckpointTensor* table = find(name);
  if (table == nullptr) return absl::OkStatus();
  size_t pairs = static_cast<size_t>(rope->rotary_dim / 2);
  bool is_f32 = table->dtype == kernels::DType::kF32;
  if (!is_f32 || table->data.size() != pairs * sizeof(float)) {
    return absl::InvalidArgumentError(
        base::StrCat(source.file(), ": tensor ", base::Quote(name), " has ", table->data.size(),
                     " bytes of ", table->type_name, ", expected ", pairs, " of F32"));
  }
  rope->divisors.resize(pairs);
  std::memcpy(rope->divisors.data(), table->data.data(), table->data.size());
  for (float divisor : rope->divisors) {
    // Files of Gemma 4 have such a divisor for pairs that do not turn.
    constexpr float kStill = 1e30f;
    if (divisor != kStill && !(divisor > 0.0f && divisor <= kMaxFactor)) {
      return absl::InvalidArgumentError(
          base::StrCat(source.file(), ": tensor ", base::Quote(name), " holds ", divisor,
                       ", expected a number above 0 and up to ", kMaxFactor));
    }
  }
  return absl::OkStatus();
}

// Ding et al. 2024: factors for texts within the original context, and for longer ones.
absl::Status ReadLongRope(const GgufSource& source, const TensorFinder& find,
                          Hyperparameters* values) {
  constexpr const char* kShort = "rope_factors_short.weight";
  constexpr const char* kLong = "rope_factors_long.weight";
  if (find(kShort) == nullptr) {
    if (values->rope.scaling != RopeScaling::kLongRope) return absl::OkStatus();
    return source.Unsupported("rope.scaling.type", "\"longrope\"",
                              base::StrCat("expected a tensor ", base::Quote(kShort)));
  }
  RopeSpec beyond = values->rope;
  HEDDLE_RETURN_IF_ERROR(ReadDivisors(source, find, kShort, &values->rope));
  HEDDLE_RETURN_IF_ERROR(ReadDivisors(source, find, kLong, &beyond));
  HEDDLE_ASSIGN_OR_RETURN(double attention,
                          source.PositiveOr("rope.scaling.attn_factor", kMaxFactor, 1.0));
  values->rope.scaling = RopeScaling::kLongRope;
  values->rope.attention_factor = static_cast<float>(attention);
  if (find(kLong) != nullptr) {
    values->rope.long_divisors = std::move(beyond.divisors);
    values->long_context = values->max_context;
  }
  values->max_context = values->rope.original_max_position;
  return absl::OkStatus();
}

// The factor by which YaRN multiplies cosines and sines. With its own multiplier, latent attention
// sharpens scores instead, and Ministral 3 divides by the magnitude that the multiplier gives.
absl::StatusOr<double> ReadYarnMagnitude(const GgufSource& source, double factor) {
  constexpr std::string_view kMultiplier = "rope.scaling.yarn_log_multiplier";
  const double usual = 1.0 + 0.1 * std::log(factor);
  if (!source.Has(kMultiplier)) return usual;
  if (source.Has(kLatentRank)) return 1.0;
  HEDDLE_ASSIGN_OR_RETURN(const double multiplier, source.Float(kMultiplier));
  const bool divides = source.prefix() == "mistral3.";
  if (multiplier == 0.0) return usual;
  if (!divides || !(multiplier > 0.0 && multiplier <= kMaxFactor)) {
    return source.Unsupported(kMultiplier, base::StrCat(multiplier),
                              divides ? "expected a number above 0" : "expected none");
  }
  return usual / (1.0 + 0.1 * multiplier * std::log(factor));
}

// The factor of cosines and sines: the folder's own, where the file keeps it, else YaRN's.
absl::StatusOr<double> ReadYarnFactor(const GgufSource& source, double factor) {
  constexpr std::string_view kWhole = "rope.scaling.yarn_attn_factor";
  if (source.Has(kWhole)) return source.Positive(kWhole, kMaxFactor);
  HEDDLE_ASSIGN_OR_RETURN(const double attention,
                          source.PositiveOr("rope.scaling.attn_factor", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(const double magnitude, ReadYarnMagnitude(source, factor));
  return attention * magnitude;
}

absl::Status ReadYarn(const GgufSource& source, double factor, RopeSpec* rope) {
  // The defaults, and the derivation of the attention factor, are llama.cpp's (ggml_rope_yarn).
  HEDDLE_ASSIGN_OR_RETURN(double fast,
                          source.PositiveOr("rope.scaling.yarn_beta_fast", kMaxFactor, 32.0));
  HEDDLE_ASSIGN_OR_RETURN(double slow,
                          source.PositiveOr("rope.scaling.yarn_beta_slow", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(const double attention, ReadYarnFactor(source, factor));
  rope->scaling = RopeScaling::kYarn;
  rope->attention_factor = static_cast<float>(attention);
  rope->beta_fast = static_cast<float>(fast);
  rope->beta_slow = static_cast<float>(slow);
  return absl::OkStatus();
}

absl::Status ReadScaling(const GgufSource& source, RopeSpec* rope) {
  HEDDLE_ASSIGN_OR_RETURN(std::string type, source.StringOr("rope.scaling.type", "none"));
  // An older key of linear scaling.
  std::string_view factor_key =
      source.Has("rope.scale_linear") ? "rope.scale_linear" : "rope.scaling.factor";
  if (type == "none" && factor_key == "rope.scale_linear") type = "linear";
  if (type == "none") return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(double factor, source.PositiveOr(factor_key, kMaxFactor, 1.0));
  rope->factor = static_cast<float>(factor);
  if (type == "linear") {
    rope->scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  if (type == "yarn") return ReadYarn(source, factor, rope);
  if (type == "longrope") {
    // The tensors of divisors say the rest.
    rope->scaling = RopeScaling::kLongRope;
    rope->factor = 1.0f;
    return absl::OkStatus();
  }
  return source.Unsupported("rope.scaling.type", base::Quote(type),
                            "supported are none, linear, yarn and longrope");
}

absl::Status ReadRope(const GgufSource& source, const Family& family, const TensorFinder& find,
                      Hyperparameters* values) {
  RopeSpec& rope = values->rope;
  rope.layout = family.gguf_rope_layout;
  HEDDLE_ASSIGN_OR_RETURN(double theta, source.PositiveOr("rope.freq_base", kMaxTheta, 10000.0));
  if (theta <= 1.0) return source.Error("rope.freq_base", base::StrCat(theta), "a number above 1");
  rope.theta = static_cast<float>(theta);
  HEDDLE_ASSIGN_OR_RETURN(rope.rotary_dim,
                          source.DimOr("rope.dimension_count", kMaxHeadDim, values->head_dim));
  if (rope.rotary_dim % 2 != 0 || rope.rotary_dim > values->head_dim) {
    return source.Error(
        "rope.dimension_count", base::StrCat(rope.rotary_dim),
        base::StrCat("an even number up to the size of a head (", values->head_dim, ")"));
  }
  HEDDLE_ASSIGN_OR_RETURN(
      rope.original_max_position,
      source.DimOr("rope.scaling.original_context_length", kMaxContext, values->max_context));
  HEDDLE_RETURN_IF_ERROR(ReadScaling(source, &rope));
  HEDDLE_RETURN_IF_ERROR(ReadDivisors(source, find, "rope_freqs.weight", &rope));
  return ReadLongRope(source, find, values);
}

// The layers with a window are those that an array names, all but each n-th, or all.
absl::Status ReadWindows(const GgufSource& source, const Family& family, Hyperparameters* values) {
  constexpr std::string_view kWindow = "attention.sliding_window";
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  if (!source.Has(kWindow)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(int64_t window, source.Int(kWindow));
  if (window == 0) return absl::OkStatus();  // Phi-3's files have this value
  HEDDLE_RETURN_IF_ERROR(source.Dim(kWindow, kMaxContext).status());
  const auto n_layers = static_cast<size_t>(values->n_layers);
  values->windows.assign(n_layers, static_cast<int32_t>(window));
  if (source.IsArray(kPattern)) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> slides, source.Ints(kPattern));
    if (slides.size() != n_layers) {
      return source.Error(kPattern, base::StrCat("an array of ", slides.size()),
                          base::StrCat("one of ", n_layers, ", one per layer"));
    }
    for (size_t i = 0; i < n_layers; ++i) {
      if (slides[i] == 0) values->windows[i] = 0;
    }
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(int32_t pattern,
                          source.DimOr(kPattern, kMaxLayers, std::max(family.window_pattern, 1)));
  for (size_t i = static_cast<size_t>(pattern) - 1; pattern > 1 && i < n_layers;
       i += static_cast<size_t>(pattern)) {
    values->windows[i] = 0;
  }
  return absl::OkStatus();
}

// Reads from the file's tensors what its metadata does not say.
absl::Status ReadRest(const GgufSource& source, const Family& family, const TensorFinder& find,
                      Hyperparameters* values) {
  HEDDLE_ASSIGN_OR_RETURN(values->norm_eps, source.Positive(family.norm == NormKind::kRms
                                                                ? "attention.layer_norm_rms_epsilon"
                                                                : "attention.layer_norm_epsilon",
                                                            1.0));
  // GGUF does not name the activation: each architecture has its own.
  values->activation = FindActivation(family.activation).value();
  values->tied_embeddings = find("output.weight") == nullptr;
  values->qkv_bias = find("blk.0.attn_q.bias") != nullptr || find("blk.0.attn_qkv.bias") != nullptr;
  values->out_bias = find("blk.0.attn_output.bias") != nullptr;
  values->mlp_bias = find("blk.0.ffn_down.bias") != nullptr;
  if (family.rope) HEDDLE_RETURN_IF_ERROR(ReadRope(source, family, find, values));
  if (family.window_rope != WindowRope::kSame) {
    values->window_rope = RopeSpec{.rotary_dim = values->rope.rotary_dim,
                                   .layout = values->rope.layout,
                                   .original_max_position = values->max_context};
    const double absent =
        family.window_rope == WindowRope::kOwnTheta ? 10000.0 : double{values->rope.theta};
    HEDDLE_ASSIGN_OR_RETURN(double theta,
                            source.PositiveOr("rope.freq_base_swa", kMaxTheta, absent));
    values->window_rope->theta = static_cast<float>(theta);
  }
  return ReadWindows(source, family, values);
}

// Whether the MLP's gate and up are one tensor, which has the name of up.
bool IsGateFused(const TensorFinder& find, const MlpSpec& mlp) {
  const CheckpointTensor* up = find("blk.0.ffn_up.weight");
  return mlp.gated && up != nullptr && find("blk.0.ffn_gate.weight") == nullptr &&
         !up->shape.empty() && up->shape[0] == 2 * int64_t{mlp.inter};
}

// Whether some block has such a tensor.
bool AnyOfBlocks(const TensorFinder& find, std::string_view name, const ModelSpec& spec) {
  for (int32_t i = 0; i < spec.n_layers(); ++i) {
    if (find(base::StrCat("blk.", i, ".", name)) != nullptr) return true;
  }
  return false;
}

NameMap NamesIn(const TensorFinder& find, const ModelSpec& spec) {
  NameMap names = GgufNames();
  LayerNames& layer = names.layer;
  if (find("blk.0.attn_qkv.weight") != nullptr) {
    for (std::string* name :
         {&layer.q, &layer.k, &layer.v, &layer.q_bias, &layer.k_bias, &layer.v_bias}) {
      name->clear();
    }
  } else {
    layer.qkv.clear();
    layer.qkv_bias.clear();
  }
  if (find("blk.0.attn_kv_b.weight") != nullptr) {
    layer.k_b.clear();
    layer.v_b.clear();
  } else {
    layer.kv_b.clear();
  }
  if (IsGateFused(find, spec.layers.front().mlp)) {
    layer.gate.clear();
    layer.up.clear();
  } else {
    layer.gate_up.clear();
  }
  // Newer converters leave the experts' gate over up as they find them.
  if (AnyOfBlocks(find, "ffn_gate_up_exps.weight", spec)) {
    layer.expert_gate_up = "blk.{}.ffn_gate_up_exps.weight";
    layer.expert_gate.clear();
    layer.expert_up.clear();
  }
  // Files written before experts were stacked have one tensor per expert.
  if (find("blk.0.ffn_gate.0.weight") != nullptr) {
    layer.expert_gate = "blk.{}.ffn_gate.{e}.weight";
    layer.expert_up = "blk.{}.ffn_up.{e}.weight";
    layer.expert_down = "blk.{}.ffn_down.{e}.weight";
  }
  return names;
}

// Reads the ids that end a text: those that end the document, the turn, or a message with a tool
// call.
absl::Status ReadSpecialIds(const GgufFile& gguf, int32_t vocab, ModelDescription* description) {
  auto read = [&](const char* key, std::vector<TokenId>* ids) -> absl::Status {
    HEDDLE_ASSIGN_OR_RETURN(int64_t id, gguf.IntOr(key, -1));
    if (id >= vocab) {
      return absl::InvalidArgumentError(base::StrCat(gguf.name(), ": ", base::Quote(key), " is ",
                                                     id, ", expected a token id from 0 to ",
                                                     vocab - 1));
    }
    if (id >= 0) ids->push_back(static_cast<TokenId>(id));
    return absl::OkStatus();
  };
  std::vector<TokenId>& eos_ids = description->eos_ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    HEDDLE_RETURN_IF_ERROR(read(key, &eos_ids));
  }
  std::sort(eos_ids.begin(), eos_ids.end());
  eos_ids.erase(std::unique(eos_ids.begin(), eos_ids.end()), eos_ids.end());
  std::vector<TokenId> bos_ids;
  HEDDLE_RETURN_IF_ERROR(read("tokenizer.ggml.bos_token_id", &bos_ids));
  if (!bos_ids.empty()) description->bos_id = bos_ids.front();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelDescription> DescribeGguf(const GgufFile& gguf, const TensorFinder& find,
                                              std::string_view like) {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view architecture, gguf.String("general.architecture"));
  HEDDLE_ASSIGN_OR_RETURN(const Family* family,
                          FindGgufFamily(gguf, like.empty() ? architecture : like));
  GgufSource source(gguf, architecture);
  Hyperparameters values;
  HEDDLE_RETURN_IF_ERROR(ReadSizes(source, *family, &values));
  HEDDLE_RETURN_IF_ERROR(ReadRest(source, *family, find, &values));
  ModelDescription description;
  description.spec = MakeSpec(*family, values);
  description.spec.norm_weight_offset = 0.0f;  // converters have already added it
  HEDDLE_RETURN_IF_ERROR(ReadGgufExperts(source, *family, find, &description.spec));
  NameMap names = NamesIn(find, description.spec);
  if (family->refine_gguf != nullptr) {
    HEDDLE_RETURN_IF_ERROR(family->refine_gguf(source, find, &description.spec, &names));
  }
  if (like.empty()) {
    HEDDLE_RETURN_IF_ERROR(ReadGgufDirections(source, *family, &description.spec));
  }
  description.names = MakeNames(names, "", description.spec);
  if (like.empty()) {
    HEDDLE_RETURN_IF_ERROR(DescribeGgufPooled(source, *family, find, &description));
  }
  HEDDLE_RETURN_IF_ERROR(ReadSpecialIds(gguf, values.vocab, &description));
  // Who names the architecture itself knows more keys than its row.
  if (like.empty()) HEDDLE_RETURN_IF_ERROR(RefuseUnreadKeys(source));
  return description;
}

}  // namespace heddle::engine
