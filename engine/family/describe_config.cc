// Reads config.json and generation_config.json of a Hugging Face folder.
#include <algorithm>
#include <limits>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

// Names in transformers' ACT2FN of the activations that the kernels compute.
constexpr struct {
  std::string_view name;
  Activation activation;
} kActivations[] = {
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"gelu_python", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},
    {"sqrelu", Activation::kRelu2},
};

absl::StatusOr<Activation> ReadActivation(const JsonSource& config, const Family& family) {
  HEDDLE_ASSIGN_OR_RETURN(std::string name,
                          config.StringOr(family.keys.activation, family.activation));
  if (std::optional<Activation> activation = FindActivation(name)) return *activation;
  std::string supported;
  for (const auto& entry : kActivations) {
    supported = base::StrCat(supported, supported.empty() ? "" : ", ", entry.name);
  }
  return config.Unsupported(family.keys.activation, base::Quote(name),
                            base::StrCat("supported are ", supported));
}

absl::StatusOr<bool> ReadFlag(const JsonSource& config, const Flag& flag) {
  if (flag.rule == Flag::Rule::kKey) return config.BoolOr(flag.key, flag.absent);
  return flag.rule == Flag::Rule::kAlways;
}

absl::StatusOr<int32_t> ReadHeadDim(const JsonSource& config, const Family& family,
                                    const Hyperparameters& values) {
  if (!family.keys.head_dim.empty() && config.Has(family.keys.head_dim)) {
    return config.Dim(family.keys.head_dim, kMaxHeadDim);
  }
  if (family.head_dim > 0) return family.head_dim;
  if (values.hidden % values.n_heads != 0) {
    return config.Error(
        family.keys.n_heads, base::StrCat(values.n_heads),
        base::StrCat("a divisor of ", base::Quote(family.keys.hidden), " (", values.hidden, ")"));
  }
  return values.hidden / values.n_heads;
}

absl::StatusOr<int32_t> ReadInter(const JsonSource& config, const Family& family, int32_t hidden) {
  const json* list = family.inter_lists ? config.Find(family.keys.inter) : nullptr;
  if (list != nullptr && list->is_array()) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<int32_t> all, ReadDims(config, family.keys.inter));
    return *std::max_element(all.begin(), all.end());
  }
  if (family.inter_per_hidden == 0) return config.Dim(family.keys.inter, kMaxInter);
  return config.DimOr(family.keys.inter, kMaxInter, family.inter_per_hidden * hidden);
}

// Reads a list of "full_attention" and "sliding_attention", one entry per layer.
absl::StatusOr<std::vector<int32_t>> WindowsByLayerType(const JsonSource& config, int32_t window,
                                                        int32_t n_layers) {
  const json& types = *config.Find("layer_types");
  if (!types.is_array() || types.size() != static_cast<size_t>(n_layers)) {
    return config.Error("layer_types", JsonSource::Show(types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  std::vector<int32_t> windows;
  for (const json& type : types) {
    bool sliding = type == "sliding_attention";
    if (!sliding && type != "full_attention") {
      return config.Unsupported("layer_types", JsonSource::Show(type),
                                "supported are \"full_attention\" and \"sliding_attention\"");
    }
    if (sliding && window == 0) {
      return config.Error("layer_types", JsonSource::Show(type),
                          "\"full_attention\", because there is no sliding window");
    }
    windows.push_back(sliding ? window : 0);
  }
  return windows;
}

// Qwen uses a window only with use_sliding_window, and from layer max_window_layers on.
absl::StatusOr<std::vector<int32_t>> UpperWindows(const JsonSource& config, int32_t n_layers) {
  constexpr int32_t kAbsentWindow = 4096;      // Qwen2Config, Qwen3Config
  constexpr int32_t kAbsentWindowLayers = 28;  // Qwen2Config, Qwen3Config
  HEDDLE_ASSIGN_OR_RETURN(bool use, config.BoolOr("use_sliding_window", false));
  int32_t window = 0;
  if (use && !config.IsNull("sliding_window")) {
    HEDDLE_ASSIGN_OR_RETURN(window, config.DimOr("sliding_window", kMaxContext, kAbsentWindow));
  }
  if (config.Has("layer_types")) return WindowsByLayerType(config, window, n_layers);
  if (window == 0) return std::vector<int32_t>();
  int64_t first = kAbsentWindowLayers;
  if (config.Has("max_window_layers")) {
    HEDDLE_ASSIGN_OR_RETURN(first, config.Int("max_window_layers"));
  }
  std::vector<int32_t> windows(static_cast<size_t>(n_layers), 0);
  for (int64_t i = std::max<int64_t>(first, 0); i < n_layers; ++i) {
    windows[static_cast<size_t>(i)] = window;
  }
  return windows;
}

// Gemma and Ministral have layer_types, or windows in all layers but each n-th.
absl::StatusOr<std::vector<int32_t>> PatternWindows(const JsonSource& config, const Family& family,
                                                    int32_t n_layers) {
  constexpr std::string_view kPatternKey = "sliding_window_pattern";
  int32_t window = 0;
  if (!config.IsNull("sliding_window")) {
    HEDDLE_ASSIGN_OR_RETURN(window,
                            config.DimOr("sliding_window", kMaxContext, family.sliding_window));
  }
  if (config.Has("layer_types")) return WindowsByLayerType(config, window, n_layers);
  int32_t pattern = family.window_pattern;
  if (pattern > 0) {
    HEDDLE_ASSIGN_OR_RETURN(pattern, config.DimOr(kPatternKey, kMaxLayers, pattern));
  }
  std::vector<int32_t> windows(static_cast<size_t>(n_layers), window);
  for (int32_t i = pattern - 1; pattern > 0 && i < n_layers; i += pattern) {
    windows[static_cast<size_t>(i)] = 0;
  }
  return windows;
}

absl::StatusOr<std::vector<int32_t>> ReadWindows(const JsonSource& config, const Family& family,
                                                 int32_t n_layers) {
  switch (family.window) {
    case WindowRule::kNone:
      break;
    case WindowRule::kUpperLayers:
      return UpperWindows(config, n_layers);
    case WindowRule::kPattern:
      return PatternWindows(config, family, n_layers);
    case WindowRule::kAllLayers: {
      if (config.IsNull("sliding_window")) break;
      HEDDLE_ASSIGN_OR_RETURN(int32_t window,
                              config.DimOr("sliding_window", kMaxContext, family.sliding_window));
      if (window == 0) break;
      return std::vector<int32_t>(static_cast<size_t>(n_layers), window);
    }
  }
  return std::vector<int32_t>();
}

absl::StatusOr<int32_t> ReadLayers(const JsonSource& config, const Family& family) {
  const std::string_view list = family.keys.layer_list;
  if (!list.empty() && !config.Has(family.keys.n_layers)) {
    const json* layers = config.Find(list);
    if (layers != nullptr && layers->is_array() && !layers->empty() &&
        layers->size() <= static_cast<size_t>(kMaxLayers)) {
      return static_cast<int32_t>(layers->size());
    }
  }
  return config.Dim(family.keys.n_layers, kMaxLayers);
}

absl::Status ReadSizes(const JsonSource& config, const Family& family, Hyperparameters* values) {
  const ConfigKeys& keys = family.keys;
  // Reads a size that may be absent if the family has a value for it.
  const auto dim = [&config](std::string_view key, int64_t max, int32_t absent) {
    return absent > 0 ? config.DimOr(key, max, absent) : config.Dim(key, max);
  };
  HEDDLE_ASSIGN_OR_RETURN(values->hidden, config.Dim(keys.hidden, kMaxHidden));
  HEDDLE_ASSIGN_OR_RETURN(values->n_layers, ReadLayers(config, family));
  HEDDLE_ASSIGN_OR_RETURN(values->vocab, dim("vocab_size", kMaxVocab, family.vocab));
  HEDDLE_ASSIGN_OR_RETURN(values->max_context,
                          dim(keys.max_context, kMaxContext, family.max_context));
  if (!family.attends) {
    SetNoHeads(values);
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(values->n_heads, dim(keys.n_heads, kMaxHeads, family.n_heads));
  values->n_kv_heads = family.n_kv_heads > 0 ? family.n_kv_heads : values->n_heads;
  if (!keys.n_kv_heads.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(values->n_kv_heads,
                            config.DimOr(keys.n_kv_heads, kMaxHeads, values->n_kv_heads));
  }
  HEDDLE_ASSIGN_OR_RETURN(values->head_dim, ReadHeadDim(config, family, *values));
  HEDDLE_RETURN_IF_ERROR(CheckHeads(config, keys.n_heads, keys.n_kv_heads, *values));
  HEDDLE_ASSIGN_OR_RETURN(values->inter, ReadInter(config, family, values->hidden));
  return absl::OkStatus();
}

absl::Status ReadRest(const JsonSource& config, const Family& family, Hyperparameters* values) {
  HEDDLE_ASSIGN_OR_RETURN(values->norm_eps,
                          config.PositiveOr(family.keys.norm_eps, 1.0, family.norm_eps));
  HEDDLE_ASSIGN_OR_RETURN(values->activation, ReadActivation(config, family));
  HEDDLE_ASSIGN_OR_RETURN(values->tied_embeddings,
                          config.BoolOr("tie_word_embeddings", family.tied_embeddings));
  HEDDLE_ASSIGN_OR_RETURN(values->qkv_bias, ReadFlag(config, family.qkv_bias));
  HEDDLE_ASSIGN_OR_RETURN(values->out_bias, ReadFlag(config, family.out_bias));
  HEDDLE_ASSIGN_OR_RETURN(values->mlp_bias, ReadFlag(config, family.mlp_bias));
  if (family.rope) {
    HEDDLE_ASSIGN_OR_RETURN(values->rope,
                            ReadRope(config, family, values->head_dim, values->max_context));
  }
  if (family.window_rope != WindowRope::kSame) {
    HEDDLE_ASSIGN_OR_RETURN(values->window_rope, ReadWindowRope(config, family, *values));
  }
  if (values->rope.scaling == RopeScaling::kLongRope) {
    // Longer texts have other angles, from their first position on: see ServeLongTexts.
    values->long_context = values->max_context;
    values->max_context = values->rope.original_max_position;
  }
  if (values->rope.scaling == RopeScaling::kYarn) {
    // Published configs keep max_position_embeddings at the length that the model was trained for.
    double stretched =
        static_cast<double>(values->rope.original_max_position) * values->rope.factor;
    values->max_context = static_cast<int32_t>(
        std::clamp<double>(stretched, values->max_context, static_cast<double>(kMaxContext)));
  }
  HEDDLE_ASSIGN_OR_RETURN(values->windows, ReadWindows(config, family, values->n_layers));
  return absl::OkStatus();
}

// Reads one id, a list of ids, or none (absent, null, or -1).
absl::Status ReadTokenIds(const JsonSource& source, std::string_view key, int32_t vocab,
                          std::vector<TokenId>* ids) {
  const json* value = source.Find(key);
  if (value == nullptr) return absl::OkStatus();
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    int64_t id = -2;
    if (item.is_number_integer()) id = item.get<int64_t>();  // numbers above 2^63 become negative
    if (id < -1 || id >= vocab) {
      return source.Error(key, JsonSource::Show(item),
                          base::StrCat("a token id from 0 to ", vocab - 1));
    }
    if (id >= 0) ids->push_back(static_cast<TokenId>(id));
  }
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  return absl::OkStatus();
}

// generation_config.json takes precedence, as in transformers' generate().
absl::Status ReadSpecialIds(const ConfigParts& config, int32_t vocab,
                            ModelDescription* description) {
  const auto has = [&config](std::string_view key) -> const JsonSource& {
    if (config.generation.Has(key)) return config.generation;
    return config.whole.Has(key) ? config.whole : config.decoder;
  };
  HEDDLE_RETURN_IF_ERROR(
      ReadTokenIds(has("eos_token_id"), "eos_token_id", vocab, &description->eos_ids));
  std::vector<TokenId> bos_ids;
  HEDDLE_RETURN_IF_ERROR(ReadTokenIds(has("bos_token_id"), "bos_token_id", vocab, &bos_ids));
  if (!bos_ids.empty()) description->bos_id = bos_ids.front();
  return absl::OkStatus();
}

// Reads an optional number of generation_config.json within [min, max].
template <typename T>
absl::Status ReadDefault(const JsonSource& source, std::string_view key, double min, double max,
                         std::optional<T>* out) {
  if (!source.Has(key)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(double value, source.Float(key));
  if (value < min || value > max) {
    return source.Error(key, base::StrCat(value), base::StrCat("a number from ", min, " to ", max));
  }
  *out = static_cast<T>(value);
  return absl::OkStatus();
}

absl::Status ReadGeneration(const JsonSource& source, GenerationDefaults* defaults) {
  constexpr double kMaxInt = std::numeric_limits<int32_t>::max();
  if (source.Has("do_sample")) {
    HEDDLE_ASSIGN_OR_RETURN(defaults->do_sample, source.Bool("do_sample"));
  }
  HEDDLE_RETURN_IF_ERROR(ReadDefault(source, "temperature", 0.0, 1e3, &defaults->temperature));
  HEDDLE_RETURN_IF_ERROR(ReadDefault(source, "top_k", -1.0, kMaxInt, &defaults->top_k));
  HEDDLE_RETURN_IF_ERROR(ReadDefault(source, "top_p", 0.0, 1.0, &defaults->top_p));
  HEDDLE_RETURN_IF_ERROR(ReadDefault(source, "min_p", 0.0, 1.0, &defaults->min_p));
  HEDDLE_RETURN_IF_ERROR(ReadDefault(source, "typical_p", 1e-6, 1.0, &defaults->typical_p));
  HEDDLE_RETURN_IF_ERROR(
      ReadDefault(source, "repetition_penalty", 1e-3, 1e3, &defaults->repetition_penalty));
  return ReadDefault(source, "max_new_tokens", 1.0, kMaxInt, &defaults->max_new_tokens);
}

// Only families that know where their MXFP4 tensors lie can read them; engine/files/quantized reads
// the other supported formats.
absl::Status CheckQuantization(const JsonSource& config, const Family& family) {
  HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> quantization,
                          config.Object("quantization_config"));
  if (!quantization.has_value()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(std::string method, quantization->StringOr("quant_method", "unnamed"));
  if (method != "mxfp4" || family.mxfp4_names != nullptr) return absl::OkStatus();
  return quantization->Unsupported("quant_method", base::Quote(method),
                                   "this family's MXFP4 layout is not known");
}

// Tables of segments (ParaThinker): where tensors or config.json say that there are any. What the
// authors' own code defaults to is 32.
absl::Status ReadSegments(const JsonSource& config, const Family& family, ModelSpec* spec,
                          NameMap* names) {
  constexpr std::string_view kSegments = "max_segments";
  if (names->layer.segments.empty() && !config.Has(kSegments)) return absl::OkStatus();
  if (family.names != &LlamaNames() || family.qk_norm != QkNorm::kNone) {
    return config.Unsupported(
        kSegments, "there, or tensors \"seg_embeddings\" are",
        base::StrCat("none in the family ", family.name, ": qwen2 and llama have them"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const int32_t segments, config.DimOr(kSegments, kMaxSegments, 32));
  for (LayerSpec& layer : spec->layers) layer.attention.segments = segments;
  names->layer.segments = kSegmentNames;
  return absl::OkStatus();
}

// Ladder residuals (Zhang et al. 2025). No published class reads such checkpoints: those that were
// made of Llama have its tensors, and here this key.
absl::Status ReadLadder(const JsonSource& config, const Family& family, ModelSpec* spec) {
  constexpr std::string_view kLadder = "ladder_residual";
  HEDDLE_ASSIGN_OR_RETURN(const bool is_ladder, config.BoolOr(kLadder, false));
  if (!is_ladder) return absl::OkStatus();
  if (family.name != "llama") {
    return config.Unsupported(kLadder, "true",
                              base::StrCat("in the family ", family.name, ": only llama has it"));
  }
  for (LayerSpec& layer : spec->layers) layer.wiring = Wiring::kLadder;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadDims(const JsonSource& config, std::string_view key) {
  std::vector<int32_t> dims;
  for (const json& value : *config.Find(key)) {
    const int64_t dim = value.is_number_integer() ? value.get<int64_t>() : 0;
    if (dim < 1 || dim > kMaxInter) {
      return config.Error(key, JsonSource::Show(value),
                          base::StrCat("integers from 1 to ", kMaxInter));
    }
    dims.push_back(static_cast<int32_t>(dim));
  }
  if (dims.empty()) return config.Error(key, "an empty list", "one integer per layer");
  return dims;
}

absl::Status ReadDirections(const JsonSource& config, const Family& family, ModelSpec* spec) {
  constexpr std::string_view kCausal = "is_causal";
  HEDDLE_ASSIGN_OR_RETURN(const bool is_causal, config.BoolOr(kCausal, true));
  if (is_causal || family.is_encoder) return absl::OkStatus();
  for (LayerSpec& layer : spec->layers) {
    AttentionSpec& attention = layer.attention;
    if (attention.conv.taps > 0 || attention.recurrence.shape.taps > 0 || attention.wkv.is_here()) {
      return config.Unsupported(kCausal, "false", "recurrent layers see what is before a row");
    }
    if (attention.window > 0 || attention.mla.kv_rank > 0) {
      return config.Unsupported(kCausal, "false",
                                "supported without sliding windows and latent attention");
    }
    attention.both_ways = true;
  }
  return absl::OkStatus();
}

std::optional<Activation> FindActivation(std::string_view name) {
  for (const auto& entry : kActivations) {
    if (entry.name == name) return entry.activation;
  }
  return std::nullopt;
}

absl::StatusOr<ModelDescription> DescribeConfigWithNames(const Family& family,
                                                         const ConfigParts& config,
                                                         const NameMap& pattern,
                                                         std::string_view prefix) {
  HEDDLE_RETURN_IF_ERROR(CheckQuantization(config.whole, family));
  Hyperparameters values;
  HEDDLE_RETURN_IF_ERROR(ReadSizes(config.decoder, family, &values));
  HEDDLE_RETURN_IF_ERROR(ReadRest(config.decoder, family, &values));
  // Models that also read images may say it outside their decoder.
  constexpr std::string_view kTied = "tie_word_embeddings";
  if (!config.decoder.Has(kTied)) {
    HEDDLE_ASSIGN_OR_RETURN(values.tied_embeddings,
                            config.whole.BoolOr(kTied, values.tied_embeddings));
  }
  ModelDescription description;
  description.spec = MakeSpec(family, values);
  NameMap names = pattern;
  if (family.refine != nullptr) {
    HEDDLE_RETURN_IF_ERROR(family.refine(config.decoder, &description.spec, &names));
  }
  HEDDLE_RETURN_IF_ERROR(ReadSegments(config.decoder, family, &description.spec, &names));
  HEDDLE_RETURN_IF_ERROR(ReadLadder(config.decoder, family, &description.spec));
  description.names = MakeNames(names, prefix, description.spec);
  HEDDLE_RETURN_IF_ERROR(ReadSpecialIds(config, values.vocab, &description));
  HEDDLE_RETURN_IF_ERROR(ReadGeneration(config.generation, &description.generation));
  return description;
}

}  // namespace heddle::engine
