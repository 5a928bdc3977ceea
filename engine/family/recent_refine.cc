#include "engine/family/recent_refine.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_refine.h"
#include "engine/family/mamba_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

void ScaleEmbeddings(ModelSpec* spec) {
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
}

// Replaces the layer's MLP by experts, beside an MLP of `shared` rows.
void AddExpertsAt(const MoeSpec& moe, int32_t shared, LayerSpec* layer) {
  layer->moe = moe;
  layer->moe.activation = layer->mlp.activation;
  layer->mlp.inter = shared;
}

// Replaces the MLP of all layers from `first` on by experts, beside an MLP of `shared` rows.
void AddExperts(const MoeSpec& moe, int64_t first, int32_t shared, ModelSpec* spec) {
  for (int64_t i = first; i < spec->n_layers(); ++i) {
    AddExpertsAt(moe, shared, &spec->layers[static_cast<size_t>(i)]);
  }
}

struct CountDefaults {
  int32_t experts = 0;
  int32_t top_k = 8;
};
absl::Status ReadCounts(const JsonSource& config, std::string_view experts_key,
                        const CountDefaults& absent, MoeSpec* moe) {
  constexpr std::string_view kTopK = "num_experts_per_tok";
  HEDDLE_ASSIGN_OR_RETURN(moe->n_experts,
                          config.DimOr(experts_key, kernels::kMaxExperts, absent.experts));
  HEDDLE_ASSIGN_OR_RETURN(moe->rule.top_k, config.DimOr(kTopK, kernels::kMaxExperts, absent.top_k));
  return CheckTopK(config, kTopK, *moe);
}

// Experts that are chosen by sigmoid scores with a bias, as in DeepSeek-V3, in the layers from
// "first_k_dense_replace" on. `absent`: what the family's class says where config.json does not.
struct SigmoidDefaults {
  bool renormalise = true;
  int32_t shared = 0;
  int64_t first = 0;
};
absl::Status AddSigmoidExperts(const JsonSource& config, const SigmoidDefaults& absent,
                               ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const MoeSpec moe,
                          ReadSigmoidExperts(config, {.renormalise = absent.renormalise}));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t shared, CountOr(config, "n_shared_experts",
                                                        kMaxInter / moe.inter, absent.shared));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t first,
                          CountOr(config, "first_k_dense_replace", kMaxLayers, absent.first));
  AddExperts(moe, first, static_cast<int32_t>(shared) * moe.inter, spec);
  return absl::OkStatus();
}

}  // namespace

void DropRopeOfFullLayers(ModelSpec* spec) {
  const bool any = std::any_of(spec->layers.begin(), spec->layers.end(),
                               [](const LayerSpec& layer) { return layer.attention.window > 0; });
  for (LayerSpec& layer : spec->layers) {
    if (any && layer.attention.window == 0) layer.attention.rope = RopeSpec{};
  }
}

void MakeParallel(ModelSpec* spec, NameMap* names) {
  for (LayerSpec& layer : spec->layers) layer.wiring = Wiring::kParallel;
  names->layer.mlp_norm = names->layer.attn_norm;
  names->layer.mlp_norm_bias = names->layer.attn_norm_bias;
}

absl::StatusOr<int64_t> CountOr(const JsonSource& config, std::string_view key, int64_t max,
                                int64_t absent) {
  if (!config.Has(key)) return absent;
  HEDDLE_ASSIGN_OR_RETURN(const int64_t count, config.Int(key));
  if (count >= 0 && count <= max) return count;
  return config.Error(key, base::StrCat(count), base::StrCat("a number from 0 to ", max));
}

absl::StatusOr<MoeSpec> ReadSigmoidExperts(const JsonSource& config, const SigmoidExperts& absent) {
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(
      ReadCounts(config, config.Has("n_routed_experts") ? "n_routed_experts" : "num_local_experts",
                 {.experts = absent.experts, .top_k = absent.top_k}, &moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter,
                          config.DimOr("moe_intermediate_size", kMaxInter, absent.inter));
  RouteRule& rule = moe.rule;
  rule.score = RouteScore::kSigmoid;
  rule.group_best = 2;
  moe.choice_bias = true;
  HEDDLE_ASSIGN_OR_RETURN(double scale,
                          config.PositiveOr("routed_scaling_factor", kMaxFactor, 1.0));
  rule.scale = static_cast<float>(scale);
  HEDDLE_ASSIGN_OR_RETURN(rule.renormalise, config.BoolOr("norm_topk_prob", absent.renormalise));
  HEDDLE_ASSIGN_OR_RETURN(rule.n_groups, config.DimOr("n_group", kernels::kMaxExpertGroups, 1));
  HEDDLE_ASSIGN_OR_RETURN(rule.top_groups,
                          config.DimOr("topk_group", kernels::kMaxExpertGroups, 1));
  HEDDLE_RETURN_IF_ERROR(CheckGroups(config, "n_group", "topk_group", moe));
  return moe;
}

absl::Status RefineGemma1(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kBidirectional = "use_bidirectional_attention";
  HEDDLE_ASSIGN_OR_RETURN(bool bidirectional, config.BoolOr(kBidirectional, false));
  if (bidirectional) return config.Unsupported(kBidirectional, "true", "expected false");
  // The first releases say "gelu" and mean its approximation.
  for (LayerSpec& layer : spec->layers) {
    if (layer.mlp.activation == Activation::kGelu) layer.mlp.activation = Activation::kGeluTanh;
  }
  ScaleEmbeddings(spec);
  return absl::OkStatus();
}

absl::Status RefineGgufGemma1(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  ScaleEmbeddings(spec);
  return absl::OkStatus();
}

absl::Status RefineCohere(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(bool qk_norm, config.BoolOr("use_qk_norm", false));
  if (qk_norm) return config.Unsupported("use_qk_norm", "true", "expected false");
  HEDDLE_ASSIGN_OR_RETURN(double scale, config.PositiveOr("logit_scale", kMaxFactor, 0.0625));
  spec->logit_scale = static_cast<float>(scale);
  MakeParallel(spec, names);
  return absl::OkStatus();
}

absl::Status RefineCohere2(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  DropRopeOfFullLayers(spec);
  return RefineCohere(config, spec, names);
}

absl::Status RefineGgufCohere(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  if (find("blk.0.attn_q_norm.weight") != nullptr) {
    return absl::UnimplementedError(
        base::StrCat(source.file(), ": queries and keys have layer norms, which is not supported"));
  }
  HEDDLE_ASSIGN_OR_RETURN(double scale, source.Positive("logit_scale", kMaxFactor));
  spec->logit_scale = static_cast<float>(scale);
  names->final_norm_bias.clear();
  names->layer.attn_norm_bias.clear();
  MakeParallel(spec, names);
  return absl::OkStatus();
}

absl::Status RefineGgufCohere2(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names) {
  DropRopeOfFullLayers(spec);
  return RefineGgufCohere(source, find, spec, names);
}

absl::Status RefineExaone4(const JsonSource&, ModelSpec* spec, NameMap*) {
  DropRopeOfFullLayers(spec);
  return absl::OkStatus();
}

absl::Status RefineGgufExaone4(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  DropRopeOfFullLayers(spec);
  return absl::OkStatus();
}

absl::Status RefineOlmoe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  if (config.Has("clip_qkv")) {
    return config.Unsupported("clip_qkv", "set", "expected null");
  }
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config,
                                    config.Has("num_experts") ? "num_experts" : "num_local_experts",
                                    {.experts = 64}, &moe));
  moe.inter = spec->layers.front().mlp.inter;
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.renormalise, config.BoolOr("norm_topk_prob", false));
  AddExperts(moe, 0, /*shared=*/0, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufOlmoe(const GgufSource& source, const TensorFinder&, ModelSpec*, NameMap*) {
  constexpr std::string_view kClamp = "attention.clamp_kqv";
  if (!source.Has(kClamp)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(double clamp, source.Float(kClamp));
  if (clamp == 0.0) return absl::OkStatus();
  return source.Unsupported(kClamp, base::StrCat(clamp), "expected none");
}

absl::Status RefineGlm4Moe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool qk_norm, config.BoolOr("use_qk_norm", false));
  if (!qk_norm) {
    for (LayerSpec& layer : spec->layers) layer.attention.qk_norm = QkNorm::kNone;
  }
  return AddSigmoidExperts(config, {.renormalise = true, .shared = 1, .first = 1}, spec);
}

// Layers see a window where layer_types says so, and without it those from max_window_layers on,
// which the class puts behind the last layer.
absl::Status RefineDots1(const JsonSource& config, ModelSpec* spec, NameMap*) {
  if (!config.Has("layer_types")) {
    constexpr std::string_view kFirstWindow = "max_window_layers";
    int64_t first = 62;
    if (config.Has(kFirstWindow)) {
      HEDDLE_ASSIGN_OR_RETURN(first, config.Int(kFirstWindow));
    }
    for (int64_t i = 0; i < std::min<int64_t>(first, spec->n_layers()); ++i) {
      spec->layers[static_cast<size_t>(i)].attention.window = 0;
    }
  }
  return AddSigmoidExperts(config, {.renormalise = false, .shared = 0, .first = 0}, spec);
}

absl::Status RefineErnie45Moe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kTopK = "moe_k";
  MoeSpec moe;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts, config.DimOr("moe_num_experts", kernels::kMaxExperts, 64));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, config.DimOr(kTopK, kernels::kMaxExperts, 6));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kTopK, moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter, config.DimOr("moe_intermediate_size", kMaxInter, 1536));
  moe.rule.renormalise = true;
  moe.choice_bias = true;
  HEDDLE_ASSIGN_OR_RETURN(const int64_t shared,
                          CountOr(config, "moe_num_shared_experts", kMaxInter / moe.inter, 2));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t first,
                          CountOr(config, "moe_layer_start_index", kMaxLayers, 1));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t interval,
                          config.DimOr("moe_layer_interval", kMaxLayers, 1));
  int64_t last = spec->n_layers() - 1;  // also said as -1
  if (config.Has("moe_layer_end_index")) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t index, config.Int("moe_layer_end_index"));
    if (index >= 0) last = std::min(index, last);
  }
  for (int64_t i = first; i <= last; ++i) {
    if ((i + 1) % interval == 0) {
      AddExpertsAt(moe, static_cast<int32_t>(shared * moe.inter),
                   &spec->layers[static_cast<size_t>(i)]);
    }
  }
  return absl::OkStatus();
}

namespace {

// Granite's experts, the weights of which are a softmax over those that are chosen.
absl::Status AddGraniteExperts(const JsonSource& config, int32_t shared, ModelSpec* spec) {
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config, "num_local_experts", {.experts = 8, .top_k = 2}, &moe));
  moe.inter = spec->layers.front().mlp.inter;
  moe.rule.renormalise = true;
  AddExperts(moe, 0, shared, spec);
  return absl::OkStatus();
}

}  // namespace

absl::Status RefineGraniteMoe(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGranite(config, spec, names));
  return AddGraniteExperts(config, /*shared=*/0, spec);
}

absl::Status RefineGraniteMoeShared(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGranite(config, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t shared,
                          CountOr(config, "shared_intermediate_size", kMaxInter, 0));
  return AddGraniteExperts(config, static_cast<int32_t>(shared), spec);
}

namespace {

// Whether each layer recurs; all do where nothing says so.
absl::StatusOr<std::vector<bool>> ReadMambaLayers(const JsonSource& config, int32_t n_layers) {
  const char* key = config.Has("layer_types") ? "layer_types" : "layers_block_type";
  const nlohmann::json* types = config.Find(key);
  if (types == nullptr) return std::vector<bool>(static_cast<size_t>(n_layers), true);
  if (!types->is_array() || static_cast<int64_t>(types->size()) != n_layers) {
    return config.Error(key, JsonSource::Show(*types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  std::vector<bool> recurs;
  for (const nlohmann::json& type : *types) {
    recurs.push_back(type == "mamba" || type == "linear_attention");
    if (recurs.back() || type == "attention" || type == "full_attention") continue;
    return config.Unsupported(key, JsonSource::Show(type),
                              "supported are \"attention\" and \"mamba\"");
  }
  return recurs;
}

}  // namespace

absl::Status RefineGraniteMoeHybrid(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> recurs,
                          ReadMambaLayers(config, spec->n_layers()));
  HEDDLE_ASSIGN_OR_RETURN(const std::string position,
                          config.StringOr("position_embedding_type", ""));
  if (position != "rope") {
    for (LayerSpec& layer : spec->layers) layer.attention.rope = RopeSpec{};
  }
  HEDDLE_RETURN_IF_ERROR(RefineGranite(config, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t shared,
                          CountOr(config, "shared_intermediate_size", kMaxInter, 1024));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t experts,
                          CountOr(config, "num_local_experts", kernels::kMaxExperts, 8));
  if (experts > 0) {
    HEDDLE_RETURN_IF_ERROR(AddGraniteExperts(config, static_cast<int32_t>(shared), spec));
  } else {
    static_cast<void>(config.Has("num_experts_per_tok"));
    for (LayerSpec& layer : spec->layers) layer.mlp.inter = static_cast<int32_t>(shared);
  }
  // The sizes of recurrent layers say nothing if there is none.
  for (const std::string_view key :
       {"mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state",
        "mamba_expand", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias"}) {
    static_cast<void>(config.Has(key));
  }
  SkipMamba2Keys(config);
  if (std::find(recurs.begin(), recurs.end(), true) == recurs.end()) return absl::OkStatus();
  SetMamba2Names("layers.{}.mamba", &names->layer);
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence,
                          ReadMamba2(config, {.absent_eps = 1e-6}, *spec));
  ApplyMamba2(recurrence, recurs, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufPostAttentionNorm(const GgufSource&, const TensorFinder&, ModelSpec*,
                                         NameMap* names) {
  names->layer.mlp_norm = "blk.{}.post_attention_norm.weight";
  return absl::OkStatus();
}

// Files of the variants that read images have q and k in the order of halves as well.
absl::Status RefineGgufGlm4Moe(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names) {
  if (find("blk.0.attn_q_norm.weight") == nullptr) {
    for (LayerSpec& layer : spec->layers) layer.attention.qk_norm = QkNorm::kNone;
  }
  return RefineGgufPostAttentionNorm(source, find, spec, names);
}

absl::Status RefineMiniMaxM2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config, "num_local_experts", {.experts = 256}, &moe));
  moe.inter = spec->layers.front().mlp.inter;
  moe.rule.score = RouteScore::kSigmoid;
  moe.rule.renormalise = true;
  moe.choice_bias = true;
  AddExperts(moe, 0, /*shared=*/0, spec);
  // The published files give the rotated part of a head by its size.
  const int32_t head_dim = spec->layers.front().attention.head_dim;
  HEDDLE_ASSIGN_OR_RETURN(
      const int32_t rotary_dim,
      config.DimOr("rotary_dim", head_dim, spec->layers.front().attention.rope.rotary_dim));
  if (rotary_dim % 2 != 0) {
    return config.Error("rotary_dim", base::StrCat(rotary_dim), "an even number");
  }
  for (LayerSpec& layer : spec->layers) layer.attention.rope.rotary_dim = rotary_dim;
  return absl::OkStatus();
}

// The base of RoPE is stretched once for all texts (NTK scaling) by "alpha".
absl::Status RefineHunYuan(const JsonSource& config, ModelSpec* spec, NameMap*) {
  double alpha = 1.0;
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> rope, config.Object(key));
    if (!rope.has_value() || !rope->Has("alpha")) continue;
    HEDDLE_ASSIGN_OR_RETURN(alpha, rope->Positive("alpha", kMaxFactor));
  }
  for (const std::string_view key : {"use_cla", "use_mla", "position_embedding_xdrope"}) {
    HEDDLE_ASSIGN_OR_RETURN(const bool used, config.BoolOr(key, false));
    if (used) return config.Unsupported(key, "true", "expected false");
  }
  // Keys of other members of the family, and of heads that classify.
  for (const std::string_view key :
       {"add_classification_head", "attention_head_dim", "cla_share_factor", "class_num",
        "dense_list", "eod_token_id", "org_vocab_size", "pool_type", "use_rotary_pos_emb"}) {
    static_cast<void>(config.Has(key));
  }
  for (LayerSpec& layer : spec->layers) {
    layer.attention.qk_norms_last = true;
    const double dim = layer.attention.head_dim;
    RopeSpec& rope = layer.attention.rope;
    rope.theta = static_cast<float>(rope.theta * std::pow(alpha, dim / (dim - 2)));
  }
  return absl::OkStatus();
}

namespace {

// A number, or a list with one for each layer, which have to be the same.
absl::StatusOr<int32_t> SameInAllLayers(const JsonSource& config, std::string_view key, int64_t max,
                                        int32_t absent) {
  const nlohmann::json* list = config.Find(key);
  if (list == nullptr || !list->is_array()) return config.DimOr(key, max, absent);
  const nlohmann::json first = list->empty() ? nlohmann::json() : list->front();
  const bool are_same = std::all_of(list->begin(), list->end(),
                                    [&](const nlohmann::json& value) { return value == first; });
  const int64_t value = first.is_number_integer() ? first.get<int64_t>() : 0;
  if (are_same && value >= 1 && value <= max) return static_cast<int32_t>(value);
  return config.Unsupported(key, JsonSource::Show(*list),
                            base::StrCat("expected one number from 1 to ", max, " in all layers"));
}

}  // namespace

absl::Status RefineHunYuanMoe(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kChosen = "moe_topk";
  HEDDLE_RETURN_IF_ERROR(RefineHunYuan(config, spec, names));
  const int32_t inter = spec->layers.front().mlp.inter;
  MoeSpec moe;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts,
                          SameInAllLayers(config, "num_experts", kernels::kMaxExperts, 1));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k,
                          SameInAllLayers(config, kChosen, kernels::kMaxExperts, 1));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kChosen, moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter,
                          SameInAllLayers(config, "moe_intermediate_size", kMaxInter, inter));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t shared,
                          SameInAllLayers(config, "num_shared_expert", int64_t{1} << 10, 1));
  constexpr std::string_view kSkipped = "moe_layer_num_skipped";
  int64_t skipped = 0;
  if (config.Has(kSkipped)) {
    HEDDLE_ASSIGN_OR_RETURN(skipped, config.Int(kSkipped));
  }
  if (skipped != 0 || moe.inter != inter || shared != 1) {
    return config.Unsupported(skipped != 0 ? kSkipped : "moe_intermediate_size",
                              base::StrCat(skipped != 0 ? skipped : int64_t{moe.inter}),
                              "expected experts in all layers, as wide as the shared one");
  }
  // Keys that the class does not look at, or that say something again.
  for (const std::string_view key :
       {"use_mixed_mlp_moe", "moe_drop_tokens", "moe_random_routing_dropped_token",
        "capacity_factor", "group_limited_greedy", "norm_topk_prob", "num_experts_per_tok",
        "num_local_experts", "routed_scaling_factor"}) {
    static_cast<void>(config.Has(key));
  }
  moe.rule.renormalise = true;
  AddExperts(moe, 0, inter, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufHunYuan(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  for (LayerSpec& layer : spec->layers) layer.attention.qk_norms_last = true;
  return absl::OkStatus();
}

absl::Status RefineMinistral3(const JsonSource& config, ModelSpec* spec, NameMap*) {
  double beta = 0.1;  // of Ministral3Config's own parameters
  for (std::string_view key : {"rope_parameters", "rope_scaling"}) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> rope, config.Object(key));
    if (!rope.has_value()) continue;
    beta = 0.0;
    if (rope->Has("llama_4_scaling_beta")) {
      HEDDLE_ASSIGN_OR_RETURN(beta, rope->Float("llama_4_scaling_beta"));
    }
  }
  const int32_t length = spec->layers.front().attention.rope.original_max_position;
  SharpenBeyond(beta, length, spec);
  return absl::OkStatus();
}

}  // namespace heddle::engine
