#include "engine/family/hybrid_rows.h"

#include <algorithm>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kLfm2Architectures[] = {"Lfm2ForCausalLM"};
constexpr std::string_view kLfm2Gguf[] = {"lfm2"};
constexpr std::string_view kLfm2MoeArchitectures[] = {"Lfm2MoeForCausalLM"};
constexpr std::string_view kLfm2MoeGguf[] = {"lfm2moe"};

// Published models have 3 taps; each costs a term per element and a row of state.
constexpr int64_t kMaxTaps = 64;

constexpr float kLfm2SumOffset = 1e-6f;  // Lfm2MoeForCausalLM's

// Turns layer `index` into a short convolution.
void Convolve(int32_t taps, bool bias, size_t index, ModelSpec* spec) {
  AttentionSpec& attention = spec->layers[index].attention;
  attention.n_heads = attention.n_kv_heads = 0;
  attention.rope = RopeSpec{};
  attention.conv = {.taps = taps, .channels = spec->hidden, .bias = bias};
}

// Whether each layer convolves: by "layer_types", or all but those of "full_attn_idxs".
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonSource& config, int32_t n_layers) {
  std::vector<bool> convolves(static_cast<size_t>(n_layers), false);
  const json* types = config.Find("layer_types");
  const json* attending = config.Find("full_attn_idxs");
  if (types == nullptr) {
    if (attending == nullptr) return convolves;
    std::fill(convolves.begin(), convolves.end(), true);
    for (const json& index : attending->is_array() ? *attending : json::array({*attending})) {
      // Numbers above 2^63 become negative.
      if (!index.is_number_integer() || index.get<int64_t>() < 0 ||
          index.get<int64_t>() >= n_layers) {
        return config.Error("full_attn_idxs", JsonSource::Show(*attending),
                            base::StrCat("a list of layers from 0 to ", n_layers - 1));
      }
      convolves[index.get<size_t>()] = false;
    }
    return convolves;
  }
  if (!types->is_array() || types->size() != convolves.size()) {
    return config.Error("layer_types", JsonSource::Show(*types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  for (size_t i = 0; i < convolves.size(); ++i) {
    const json& type = (*types)[i];
    if (type != "conv" && type != "full_attention") {
      return config.Unsupported("layer_types", JsonSource::Show(type),
                                "supported are \"full_attention\" and \"conv\"");
    }
    convolves[i] = type == "conv";
  }
  return convolves;
}

// Keys of the first releases that say again what others say, and at which the class does not look.
absl::Status CheckRepeated(const JsonSource& config, const ModelSpec& spec) {
  for (const std::string_view key : {"block_norm_eps", "num_heads", "theta"}) {
    static_cast<void>(config.Has(key));
  }
  const struct {
    std::string_view key;
    int64_t value;
  } repeated[] = {
      {"block_dim", spec.hidden}, {"conv_dim", spec.hidden}, {"conv_dim_out", spec.hidden}};
  for (const auto& [key, value] : repeated) {
    if (!config.Has(key)) continue;
    HEDDLE_ASSIGN_OR_RETURN(const int64_t found, config.Int(key));
    if (found == value) continue;
    return config.Unsupported(key, base::StrCat(found),
                              base::StrCat("expected \"hidden_size\" (", value, ")"));
  }
  return absl::OkStatus();
}

absl::Status ReadTiedHead(const JsonSource& config, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(spec->tied_embeddings,
                          config.BoolOr("tie_embedding", spec->tied_embeddings));
  return absl::OkStatus();
}

absl::Status ReadConvolutions(const JsonSource& config, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t taps, config.DimOr("conv_L_cache", kMaxTaps, 3));
  HEDDLE_ASSIGN_OR_RETURN(const bool bias, config.BoolOr("conv_bias", false));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> convolves,
                          ReadLayerTypes(config, spec->n_layers()));
  for (size_t i = 0; i < convolves.size(); ++i) {
    if (convolves[i]) Convolve(taps, bias, i, spec);
  }
  HEDDLE_RETURN_IF_ERROR(CheckRepeated(config, *spec));
  return ReadTiedHead(config, spec);
}

// The width of the MLP follows from the one that the configuration names.
absl::StatusOr<int32_t> AdjustedInter(const JsonSource& config) {
  constexpr int32_t kAbsentInter = 12288;
  HEDDLE_ASSIGN_OR_RETURN(int64_t inter,
                          config.DimOr("intermediate_size", kMaxInter, kAbsentInter));
  if (config.Has("block_ff_dim")) {
    HEDDLE_ASSIGN_OR_RETURN(inter, config.Dim("block_ff_dim", kMaxInter));
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool adjust, config.BoolOr("block_auto_adjust_ff_dim", true));
  HEDDLE_ASSIGN_OR_RETURN(const double factor,
                          config.PositiveOr("block_ffn_dim_multiplier", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t multiple,
                          config.DimOr("block_multiple_of", kMaxInter, 256));
  if (!adjust) return static_cast<int32_t>(inter);
  const int64_t two_thirds = 2 * inter / 3;  // rounded down
  auto width = static_cast<double>(two_thirds);
  if (!config.IsNull("block_ffn_dim_multiplier")) {
    width = static_cast<double>(static_cast<int64_t>(factor * width));
    const auto units = static_cast<int64_t>((width + multiple - 1) / multiple);
    width = static_cast<double>(units) * multiple;
  }
  if (width < 1 || width > static_cast<double>(kMaxInter)) {
    return config.Error(
        "block_ffn_dim_multiplier", base::StrCat(factor),
        base::StrCat("one with which the MLP has from 1 to ", kMaxInter, " features"));
  }
  return static_cast<int32_t>(width);
}

absl::Status RefineLfm2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t inter, AdjustedInter(config));
  for (LayerSpec& layer : spec->layers) layer.mlp.inter = inter;
  return ReadConvolutions(config, spec);
}

absl::Status RefineLfm2Moe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kExpertsOfRow = "num_experts_per_tok";
  MoeSpec moe;
  moe.activation = spec->layers.front().mlp.activation;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts, config.DimOr("num_experts", kernels::kMaxExperts, 32));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, config.DimOr(kExpertsOfRow, kernels::kMaxExperts, 4));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kExpertsOfRow, moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter, config.DimOr("moe_intermediate_size", kMaxInter, 1792));
  moe.rule.score = RouteScore::kSigmoid;
  moe.rule.sum_offset = kLfm2SumOffset;
  HEDDLE_ASSIGN_OR_RETURN(moe.choice_bias, config.BoolOr("use_expert_bias", true));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.renormalise, config.BoolOr("norm_topk_prob", true));
  HEDDLE_ASSIGN_OR_RETURN(const double scale,
                          config.PositiveOr("routed_scaling_factor", kMaxFactor, 1.0));
  moe.rule.scale = static_cast<float>(scale);
  int64_t dense = 2;
  if (config.Has("num_dense_layers")) {
    HEDDLE_ASSIGN_OR_RETURN(dense, config.Int("num_dense_layers"));
  }
  if (dense < 0 || dense > spec->n_layers()) {
    return config.Error("num_dense_layers", base::StrCat(dense),
                        base::StrCat("a number from 0 to ", spec->n_layers()));
  }
  for (auto i = static_cast<size_t>(dense); i < spec->layers.size(); ++i) {
    spec->layers[i].moe = moe;
    spec->layers[i].mlp.inter = 0;
  }
  return ReadConvolutions(config, spec);
}

// Layers convolve where no head is counted.
absl::Status RefineGgufLfm2(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names) {
  constexpr std::string_view kHeadCounts = "attention.head_count_kv";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t taps, source.Dim("shortconv.l_cache", kMaxTaps));
  // Newer files have the final norm under its usual name.
  if (find(names->final_norm) == nullptr) names->final_norm = "token_embd_norm.weight";
  if (!source.IsArray(kHeadCounts)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> heads, source.Ints(kHeadCounts));
  if (heads.size() != spec->layers.size()) {
    return source.Error(kHeadCounts, base::StrCat("an array of ", heads.size()),
                        base::StrCat("one of ", spec->n_layers(), ", one per layer"));
  }
  const int32_t kv_heads = spec->layers.front().attention.n_kv_heads;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] == 0) {
      const std::string name = base::StrCat("blk.", i, ".shortconv.conv.bias");
      Convolve(taps, find(name) != nullptr, i, spec);
    } else if (heads[i] != kv_heads) {
      return source.Unsupported(kHeadCounts, base::StrCat(heads[i]),
                                base::StrCat("expected 0 or ", kv_heads, " in each layer"));
    }
  }
  return absl::OkStatus();
}

// ReadGgufExperts has found the experts, whose scores the file need not name.
absl::Status RefineGgufLfm2Moe(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names) {
  for (LayerSpec& layer : spec->layers) {
    if (layer.moe.n_experts == 0) continue;
    layer.moe.rule.score = RouteScore::kSigmoid;
    layer.moe.rule.sum_offset = kLfm2SumOffset;
  }
  return RefineGgufLfm2(source, find, spec, names);
}

const NameMap& Lfm2Names() {
  static const NameMap names = [] {
    NameMap lfm2 = LlamaNames();
    lfm2.final_norm = "embedding_norm.weight";
    LayerNames& layer = lfm2.layer;
    layer.attn_norm = "layers.{}.operator_norm.weight";
    layer.q_norm = "layers.{}.self_attn.q_layernorm.weight";
    layer.k_norm = "layers.{}.self_attn.k_layernorm.weight";
    layer.o = "layers.{}.self_attn.out_proj.weight";
    layer.conv = "layers.{}.conv.conv.weight";
    layer.conv_bias = "layers.{}.conv.conv.bias";
    layer.conv_in = "layers.{}.conv.in_proj.weight";
    layer.conv_in_bias = "layers.{}.conv.in_proj.bias";
    layer.conv_out = "layers.{}.conv.out_proj.weight";
    layer.conv_out_bias = "layers.{}.conv.out_proj.bias";
    layer.mlp_norm = "layers.{}.ffn_norm.weight";
    layer.gate = "layers.{}.feed_forward.w1.weight";
    layer.up = "layers.{}.feed_forward.w3.weight";
    layer.down = "layers.{}.feed_forward.w2.weight";
    return lfm2;
  }();
  return names;
}

const NameMap& Lfm2MoeNames() {
  static const NameMap names = [] {
    NameMap lfm2 = Lfm2Names();
    LayerNames& layer = lfm2.layer;
    layer.router = "layers.{}.feed_forward.gate.weight";
    layer.choice_bias = "layers.{}.feed_forward.expert_bias";
    layer.expert_gate = "layers.{}.feed_forward.experts.{e}.w1.weight";
    layer.expert_up = "layers.{}.feed_forward.experts.{e}.w3.weight";
    layer.expert_down = "layers.{}.feed_forward.experts.{e}.w2.weight";
    return lfm2;
  }();
  return names;
}

const NameMap& Lfm2MoeStackedNames() {
  static const NameMap names = [] {
    NameMap lfm2 = Lfm2MoeNames();
    lfm2.layer.expert_gate = lfm2.layer.expert_up = "";
    lfm2.layer.expert_gate_up = "layers.{}.feed_forward.experts.gate_up_proj";
    lfm2.layer.expert_down = "layers.{}.feed_forward.experts.down_proj";
    return lfm2;
  }();
  return names;
}

Family Lfm2(const Family& llama) {
  Family lfm2 = llama;
  lfm2.name = lfm2.model_type = "lfm2";
  lfm2.architectures = kLfm2Architectures;
  lfm2.gguf_architectures = kLfm2Gguf;
  lfm2.keys.norm_eps = "norm_eps";
  lfm2.norm_eps = 1e-5;
  lfm2.n_kv_heads = 8;
  lfm2.rope_theta = 1000000.0;
  lfm2.tied_embeddings = true;
  lfm2.inter_per_hidden = 1;  // see AdjustedInter
  lfm2.max_context = 128000;
  lfm2.qkv_bias = lfm2.out_bias = lfm2.mlp_bias = Flag::Never();
  lfm2.qk_norm = QkNorm::kPerHead;
  lfm2.gguf_rope_layout = RopeLayout::kHalf;
  lfm2.names = &Lfm2Names();
  lfm2.refine = RefineLfm2;
  lfm2.refine_gguf = RefineGgufLfm2;
  return lfm2;
}

Family Lfm2Moe(const Family& llama) {
  Family moe = Lfm2(llama);
  moe.name = moe.model_type = "lfm2_moe";
  moe.architectures = kLfm2MoeArchitectures;
  moe.gguf_architectures = kLfm2MoeGguf;
  moe.gguf_renormalise = true;
  moe.names = &Lfm2MoeNames();
  moe.stacked_names = &Lfm2MoeStackedNames();
  moe.refine = RefineLfm2Moe;
  moe.refine_gguf = RefineGgufLfm2Moe;
  return moe;
}

}  // namespace

std::vector<Family> HybridRows(const Family& llama) { return {Lfm2(llama), Lfm2Moe(llama)}; }

}  // namespace heddle::engine
