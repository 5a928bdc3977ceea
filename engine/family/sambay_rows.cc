#include "engine/family/sambay_rows.h"

#include <cmath>
#include <string_view>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/recurrent_rows.h"
#include "engine/family/selective_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kSambaYArchitectures[] = {"Phi4FlashForCausalLM"};
// Phi4FlashConfig's where config.json has none.
constexpr int32_t kSambaYWindow = 2047;

// The kind of layer `i` of `n`, beside attention over keys of its own: even layers recur, and odd
// ones attend; those behind the layer that sees everything read what it and the recurrence before
// it have left.
struct SambaYLayer {
  SambaYLayer(int32_t i, int32_t n)
      : recurs(i % 2 == 0), is_first_half(i < n / 2), reads(i > n / 2 + 1) {}
  bool recurs;
  bool is_first_half;
  bool reads;
};

NameMap SambaYNames() {
  NameMap names = LlamaNames();
  names.final_norm = "final_layernorm.weight";
  names.final_norm_bias = "final_layernorm.bias";
  LayerNames& layer = names.layer;
  layer = {};
  SetSelectiveNames("layers.{}.attn", &layer);
  layer.attn_norm = "layers.{}.input_layernorm.weight";
  layer.attn_norm_bias = "layers.{}.input_layernorm.bias";
  layer.qkv = "layers.{}.attn.Wqkv.weight";
  layer.qkv_bias = "layers.{}.attn.Wqkv.bias";
  layer.o = "layers.{}.attn.out_proj.weight";
  layer.o_bias = "layers.{}.attn.out_proj.bias";
  layer.lambda_q1 = "layers.{}.attn.inner_cross_attn.lambda_q1";
  layer.lambda_k1 = "layers.{}.attn.inner_cross_attn.lambda_k1";
  layer.lambda_q2 = "layers.{}.attn.inner_cross_attn.lambda_q2";
  layer.lambda_k2 = "layers.{}.attn.inner_cross_attn.lambda_k2";
  layer.pair_norm = "layers.{}.attn.inner_cross_attn.subln.weight";
  layer.mlp_norm = "layers.{}.post_attention_layernorm.weight";
  layer.mlp_norm_bias = "layers.{}.post_attention_layernorm.bias";
  layer.gate_up = "layers.{}.mlp.fc1.weight";
  layer.down = "layers.{}.mlp.fc2.weight";
  return names;
}

absl::Status CheckPairs(const JsonSource& config, const ModelSpec& spec) {
  constexpr std::string_view kLayers = "num_hidden_layers", kPeriod = "mb_per_layer";
  if (spec.n_layers() % 4 != 0) {
    return config.Error(kLayers, base::StrCat(spec.n_layers()), "a multiple of 4");
  }
  HEDDLE_ASSIGN_OR_RETURN(const int32_t period, config.DimOr(kPeriod, kMaxLayers, 2));
  if (period != 2) {
    return config.Unsupported(kPeriod, base::StrCat(period),
                              "expected 2, every second layer a recurrence");
  }
  const AttentionSpec& attention = spec.layers.front().attention;
  for (const auto& [key, count] : {std::pair("num_attention_heads", attention.n_heads),
                                   std::pair("num_key_value_heads", attention.n_kv_heads)}) {
    if (count % 2 == 0) continue;
    return config.Error(key, base::StrCat(count), "an even number: heads are in pairs");
  }
  return absl::OkStatus();
}

// Refuses lists of other layers than those that have windows. Entries of recurrences say nothing.
absl::Status CheckLayerTypes(const JsonSource& config, int32_t n_layers) {
  constexpr std::string_view kTypes = "layer_types";
  const nlohmann::json* types = config.Find(kTypes);
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array() || types->size() != static_cast<size_t>(n_layers)) {
    return config.Error(kTypes, JsonSource::Show(*types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  for (int32_t i = 1; i < n_layers; i += 2) {
    const bool slides = SambaYLayer(i, n_layers).is_first_half;
    const nlohmann::json& type = (*types)[static_cast<size_t>(i)];
    if (type == (slides ? "sliding_attention" : "full_attention")) continue;
    return config.Unsupported(
        kTypes, JsonSource::Show(type),
        base::StrCat("expected ", slides ? "\"sliding_attention\"" : "\"full_attention\"",
                     " for layer ", i, " of ", n_layers));
  }
  return absl::OkStatus();
}

// One window, or as the class saves itself a list: the window of each layer, null where it has
// none. Returns 0 if there is no window.
absl::StatusOr<int32_t> ReadSambaYWindow(const JsonSource& config, int32_t n_layers) {
  constexpr std::string_view kWindow = "sliding_window";
  if (config.IsNull(kWindow)) return 0;
  const nlohmann::json* value = config.Find(kWindow);
  if (value == nullptr || !value->is_array()) {
    return config.DimOr(kWindow, kMaxContext, kSambaYWindow);
  }
  int64_t window = 0;
  bool fits = value->size() == static_cast<size_t>(n_layers);
  for (int32_t i = 0; fits && i < n_layers; ++i) {
    const SambaYLayer layer(i, n_layers);
    const nlohmann::json& own = (*value)[static_cast<size_t>(i)];
    if (layer.recurs || !layer.is_first_half) {
      fits = own.is_null();
      continue;
    }
    const int64_t found = own.is_number_integer() ? own.get<int64_t>() : 0;
    fits = found > 0 && found <= kMaxContext && (window == 0 || found == window);
    window = found;
  }
  if (fits) return static_cast<int32_t>(window);
  return config.Error(kWindow, JsonSource::Show(*value),
                      base::StrCat("a number, or a list of ", n_layers,
                                   " with one number in odd layers of the first half and null in "
                                   "the others"));
}

void Attend(int32_t index, int32_t window, ModelSpec* spec) {
  const int32_t n = spec->n_layers();
  const SambaYLayer layer(index, n);
  AttentionSpec& attention = spec->layers[static_cast<size_t>(index)].attention;
  attention.rope = RopeSpec{};
  attention.differential.is_here = true;
  attention.differential.first = static_cast<float>(0.8 - 0.6 * std::exp(-0.3 * index));
  if (layer.is_first_half) attention.window = window;
  if (!layer.reads) return;
  attention.kv_layer = n / 2 + 1;
  attention.n_kv_heads = 0;
}

absl::Status RefineSambaY(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(CheckPairs(config, *spec));
  const int32_t n = spec->n_layers();
  HEDDLE_RETURN_IF_ERROR(CheckLayerTypes(config, n));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t window, ReadSambaYWindow(config, n));
  HEDDLE_ASSIGN_OR_RETURN(RecurrenceSpec recurrence,
                          ReadSelective(config, kHybridSelectiveKeys, spec->hidden));
  HEDDLE_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr("lm_head_bias", false));
  if (has_bias) names->lm_head_bias = "lm_head.bias";
  const auto channels = static_cast<int32_t>(recurrence.shape.values());
  for (int32_t i = 0; i < n; ++i) {
    const SambaYLayer layer(i, n);
    if (!layer.recurs) {
      Attend(i, window, spec);
      continue;
    }
    recurrence.is_memory = i == n / 2;
    Recur(recurrence, static_cast<size_t>(i), spec);
    if (!layer.reads) continue;
    AttentionSpec& attention = spec->layers[static_cast<size_t>(i)].attention;
    attention.recurrence = {};
    attention.memory = {.channels = channels, .bias = recurrence.bias};
  }
  return absl::OkStatus();
}

}  // namespace

Family SambaYRow(const Family& llama) {
  static const NameMap names = SambaYNames();
  Family sambay = llama;
  sambay.name = sambay.model_type = "phi4flash";
  sambay.architectures = kSambaYArchitectures;
  sambay.gguf_architectures = {};
  sambay.keys.norm_eps = "layer_norm_eps";
  sambay.keys.head_dim = {};
  sambay.norm = NormKind::kLayer;
  sambay.norm_eps = 1e-5;
  sambay.tied_embeddings = true;
  sambay.qkv_bias = sambay.out_bias = Flag::Always();
  sambay.mlp_bias = Flag::Never();
  sambay.names = &names;
  sambay.refine = RefineSambaY;
  sambay.refine_gguf = nullptr;
  return sambay;
}

}  // namespace heddle::engine
