#include "engine/family/llama4_rows.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kLlama4Architectures[] = {"Llama4ForCausalLM",
                                                     "Llama4ForConditionalGeneration"};
constexpr std::string_view kLlama4Gguf[] = {"llama4"};

// Llama4TextConfig's defaults, which are llama.cpp's constants.
constexpr int32_t kLlama4Chunk = 8192;
constexpr int32_t kLlama4Floor = 8192;
constexpr double kSharpening = 0.1;
constexpr int32_t kNoRopeInterval = 4;

const NameMap& Llama4Names() {
  static const NameMap names = [] {
    NameMap llama = LlamaNames();
    LayerNames& layer = llama.layer;
    layer.q_norm = layer.k_norm = "";  // norms without weights
    layer.gate = "layers.{}.feed_forward.gate_proj.weight";
    layer.up = "layers.{}.feed_forward.up_proj.weight";
    layer.down = "layers.{}.feed_forward.down_proj.weight";
    layer.router = "layers.{}.feed_forward.router.weight";
    layer.expert_gate_up = "layers.{}.feed_forward.experts.gate_up_proj";
    layer.expert_down = "layers.{}.feed_forward.experts.down_proj";
    layer.shared_gate = "layers.{}.feed_forward.shared_expert.gate_proj.weight";
    layer.shared_up = "layers.{}.feed_forward.shared_expert.up_proj.weight";
    layer.shared_down = "layers.{}.feed_forward.shared_expert.down_proj.weight";
    llama.expert_layout = ExpertLayout::kTransposedHalves;
    return llama;
  }();
  return names;
}

// A list of `n_layers` entries under `key`, or nullptr where there is none or it is empty.
absl::StatusOr<const json*> ReadList(const JsonSource& config, std::string_view key,
                                     int32_t n_layers) {
  const json* list = config.Find(key);
  if (list == nullptr || (list->is_array() && list->empty())) return nullptr;
  if (list->is_array() && list->size() >= static_cast<size_t>(n_layers)) return list;
  return config.Error(key, JsonSource::Show(*list),
                      base::StrCat("a list of ", n_layers, " entries, one per layer"));
}

// Layers with RoPE attend in chunks, the others see everything and sharpen their queries.
struct Attending {
  std::vector<bool> rotates;  // [n_layers]
  std::vector<bool> chunks;   // [n_layers]
  int32_t chunk = kLlama4Chunk;
  bool qk_norm = true;
  SharpenSpec sharpen;
};

void ApplyAttending(const Attending& attending, ModelSpec* spec) {
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    AttentionSpec& attention = spec->layers[i].attention;
    if (attending.chunks[i]) {
      attention.window = attending.chunk;
      attention.in_chunks = true;
    }
    if (!attending.rotates[i]) {
      attention.rope = RopeSpec{};
      attention.sharpen = attending.sharpen;
    } else if (attending.qk_norm) {
      attention.qk_norm = QkNorm::kPerHead;
      attention.qk_norms_last = attention.qk_norm_plain = true;
    }
  }
}

// Old files have a number here, of which zero means that nothing is sharpened.
absl::StatusOr<bool> ReadTuning(const JsonSource& config) {
  constexpr std::string_view kKey = "attn_temperature_tuning";
  const json* value = config.Find(kKey);
  if (value != nullptr && value->is_number()) return *value != 0;
  return config.BoolOr(kKey, true);
}

absl::Status ReadRotations(const JsonSource& config, int32_t n_layers, Attending* attending) {
  HEDDLE_ASSIGN_OR_RETURN(const json* list, ReadList(config, "no_rope_layers", n_layers));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t interval,
                          config.DimOr("no_rope_layer_interval", kMaxLayers, kNoRopeInterval));
  // The class does not look at the key's first name.
  constexpr std::string_view kFirstName = "nope_layer_interval";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t first, config.DimOr(kFirstName, kMaxLayers, interval));
  if (first != interval) {
    return config.Unsupported(
        kFirstName, base::StrCat(first),
        base::StrCat("expected that of \"no_rope_layer_interval\" (", interval, ")"));
  }
  for (int32_t i = 0; i < n_layers; ++i) {
    const bool by_interval = (i + 1) % interval != 0;
    attending->rotates.push_back(list == nullptr ? by_interval
                                                 : (*list)[static_cast<size_t>(i)] == 1);
  }
  return absl::OkStatus();
}

absl::Status ReadChunks(const JsonSource& config, int32_t n_layers, Attending* attending) {
  constexpr std::string_view kKey = "attention_chunk_size";
  HEDDLE_ASSIGN_OR_RETURN(const json* types, ReadList(config, "layer_types", n_layers));
  const bool has_chunks = !config.IsNull(kKey);
  HEDDLE_ASSIGN_OR_RETURN(attending->chunk, config.DimOr(kKey, kMaxContext, kLlama4Chunk));
  for (size_t i = 0; i < static_cast<size_t>(n_layers); ++i) {
    if (types == nullptr) {
      attending->chunks.push_back(has_chunks && attending->rotates[i]);
      continue;
    }
    const json& type = (*types)[i];
    const bool is_chunked = type == "chunked_attention";
    if ((!is_chunked && type != "full_attention") || (is_chunked && !has_chunks)) {
      return config.Unsupported("layer_types", JsonSource::Show(type),
                                "supported are \"full_attention\" and, with a size of chunks, "
                                "\"chunked_attention\"");
    }
    attending->chunks.push_back(is_chunked);
  }
  return absl::OkStatus();
}

absl::Status ReadAttending(const JsonSource& config, ModelSpec* spec) {
  Attending attending;
  HEDDLE_RETURN_IF_ERROR(ReadRotations(config, spec->n_layers(), &attending));
  HEDDLE_RETURN_IF_ERROR(ReadChunks(config, spec->n_layers(), &attending));
  HEDDLE_ASSIGN_OR_RETURN(attending.qk_norm, config.BoolOr("use_qk_norm", true));
  HEDDLE_ASSIGN_OR_RETURN(const bool tunes, ReadTuning(config));
  HEDDLE_ASSIGN_OR_RETURN(const double factor,
                          config.PositiveOr("attn_scale", kMaxFactor, kSharpening));
  HEDDLE_ASSIGN_OR_RETURN(attending.sharpen.length,
                          config.DimOr("floor_scale", kMaxContext, kLlama4Floor));
  attending.sharpen.offset = 1;
  attending.sharpen.factor = tunes ? static_cast<float>(factor) : 0.0f;
  ApplyAttending(attending, spec);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> ReadExpertLayers(const JsonSource& config, int32_t n_layers) {
  constexpr std::string_view kKey = "moe_layers";
  std::vector<bool> has(static_cast<size_t>(n_layers));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t step,
                          config.DimOr("interleave_moe_layer_step", kMaxLayers, 1));
  const json* list = config.Find(kKey);
  if (list == nullptr) {
    for (auto i = static_cast<size_t>(step) - 1; i < has.size(); i += static_cast<size_t>(step)) {
      has[i] = true;
    }
    return has;
  }
  for (const json& layer : *list) {
    const int64_t index = layer.is_number_integer() ? layer.get<int64_t>() : -1;
    if (index < 0 || index >= n_layers) {
      return config.Error(kKey, JsonSource::Show(layer),
                          base::StrCat("numbers of layers from 0 to ", n_layers - 1));
    }
    has[static_cast<size_t>(index)] = true;
  }
  return has;
}

absl::Status RefineLlama4(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kExpertsOfRow = "num_experts_per_tok";
  HEDDLE_RETURN_IF_ERROR(ReadAttending(config, spec));
  MoeSpec moe;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts,
                          config.DimOr("num_local_experts", kernels::kMaxExperts, 16));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, config.DimOr(kExpertsOfRow, kernels::kMaxExperts, 1));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kExpertsOfRow, moe));
  moe.inter = spec->layers.front().mlp.inter;
  moe.activation = spec->layers.front().mlp.activation;
  moe.rule.score = RouteScore::kSigmoid;
  moe.weighs_inputs = true;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t dense,
                          config.DimOr("intermediate_size_mlp", kMaxInter, 16384));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> has_experts,
                          ReadExpertLayers(config, spec->n_layers()));
  for (size_t i = 0; i < has_experts.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    if (has_experts[i]) {
      layer.moe = moe;
    } else {
      layer.mlp.inter = dense;
    }
  }
  return absl::OkStatus();
}

// Values that the file does not give are constants in llama.cpp; the largest model has no norms of
// queries and keys.
absl::Status RefineGgufLlama4(const GgufSource&, const TensorFinder&, ModelSpec* spec,
                              NameMap* names) {
  constexpr int32_t kExpertsWithoutNorms = 128;
  Attending attending;
  attending.sharpen = {
      .factor = static_cast<float>(kSharpening), .length = kLlama4Floor, .offset = 1};
  for (int32_t i = 0; i < spec->n_layers(); ++i) {
    LayerSpec& layer = spec->layers[static_cast<size_t>(i)];
    attending.rotates.push_back((i + 1) % kNoRopeInterval != 0);
    if (layer.moe.n_experts == kExpertsWithoutNorms) attending.qk_norm = false;
    layer.moe.rule.score = RouteScore::kSigmoid;
    layer.moe.rule.renormalise = false;
    layer.moe.rule.group_best = 1;
    layer.moe.weighs_inputs = true;
  }
  attending.chunks = attending.rotates;
  names->layer.q_norm = names->layer.k_norm = "";  // norms without weights
  ApplyAttending(attending, spec);
  return absl::OkStatus();
}

}  // namespace

std::vector<Family> Llama4Rows(const Family& llama) {
  Family llama4 = llama;
  llama4.name = "llama4";
  llama4.model_type = "llama4_text";
  llama4.architectures = kLlama4Architectures;
  llama4.gguf_architectures = kLlama4Gguf;
  llama4.norm_eps = 1e-5;
  llama4.n_heads = 40;
  llama4.n_kv_heads = 8;
  llama4.vocab = 202048;
  llama4.head_dim = 128;
  llama4.max_context = 131072;
  llama4.rope_theta = 500000.0;
  llama4.rope_layout = RopeLayout::kInterleaved;
  llama4.mlp_bias = Flag::Never();
  llama4.gguf_renormalise = false;
  llama4.names = &Llama4Names();
  llama4.refine = RefineLlama4;
  llama4.refine_gguf = RefineGgufLlama4;
  return {llama4};
}

}  // namespace heddle::engine
