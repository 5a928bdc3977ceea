// Reads config.json of DeepSeek-V2, V3 and V3.2, and of GLM with their attention; see
// family_refine.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_refine.h"
#include "engine/family/recent_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kTopKName = "num_experts_per_tok";

constexpr MlaSpec kAbsentMla = {
    .kv_rank = 512, .q_rank = 1536, .nope_dim = 128, .rope_dim = 64, .v_dim = 128};

absl::StatusOr<MlaSpec> ReadMla(const JsonSource& config, const MlaSpec& absent) {
  MlaSpec mla;
  HEDDLE_ASSIGN_OR_RETURN(mla.kv_rank, config.DimOr("kv_lora_rank", kMaxHeadDim, absent.kv_rank));
  if (!config.IsNull("q_lora_rank")) {
    HEDDLE_ASSIGN_OR_RETURN(mla.q_rank, config.DimOr("q_lora_rank", kMaxHidden, absent.q_rank));
  }
  HEDDLE_ASSIGN_OR_RETURN(mla.nope_dim,
                          config.DimOr("qk_nope_head_dim", kMaxHeadDim, absent.nope_dim));
  HEDDLE_ASSIGN_OR_RETURN(mla.rope_dim,
                          config.DimOr("qk_rope_head_dim", kMaxHeadDim, absent.rope_dim));
  HEDDLE_ASSIGN_OR_RETURN(mla.v_dim, config.DimOr("v_head_dim", kMaxHeadDim, absent.v_dim));
  return mla;
}

// YaRN sharpens these models' scores by the square of its magnitude (Peng et al. 2023, 3.4); if
// "mscale" equals "mscale_all_dim", it leaves cosines and sines alone.
absl::StatusOr<double> ReadSharpness(const JsonSource& config) {
  for (std::string_view key : {"rope_scaling", "rope_parameters"}) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> rope, config.Object(key));
    if (!rope.has_value()) continue;
    HEDDLE_ASSIGN_OR_RETURN(
        std::string type, rope->StringOr(rope->Has("rope_type") ? "rope_type" : "type", "default"));
    HEDDLE_ASSIGN_OR_RETURN(double all_dim, rope->PositiveOr("mscale_all_dim", kMaxFactor, 0.0));
    if (type == "default" || all_dim == 0.0) return 1.0;
    HEDDLE_ASSIGN_OR_RETURN(double factor, rope->Positive("factor", kMaxFactor));
    const double magnitude = factor <= 1.0 ? 1.0 : 0.1 * all_dim * std::log(factor) + 1.0;
    return magnitude * magnitude;
  }
  return 1.0;
}

absl::Status ReadLatentAttention(const JsonSource& config, const MlaSpec& absent, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(bool bias, config.BoolOr("attention_bias", false));
  if (bias) return config.Unsupported("attention_bias", "true", "expected false");
  HEDDLE_ASSIGN_OR_RETURN(const MlaSpec mla, ReadMla(config, absent));
  const int64_t n_heads = spec->layers.front().attention.n_heads;
  if (n_heads * (mla.rope_dim + mla.kv_rank) > kMaxInter) {
    return config.Error("num_attention_heads", base::StrCat(n_heads),
                        base::StrCat("at most ", kMaxInter / (mla.rope_dim + mla.kv_rank),
                                     " with \"kv_lora_rank\" ", mla.kv_rank));
  }
  HEDDLE_ASSIGN_OR_RETURN(double sharpness, ReadSharpness(config));
  ApplyLatentAttention(mla, sharpness, spec);
  HEDDLE_ASSIGN_OR_RETURN(bool interleave, config.BoolOr("rope_interleave", true));
  for (LayerSpec& layer : spec->layers) {
    layer.attention.rope.layout = interleave ? RopeLayout::kInterleaved : RopeLayout::kHalf;
  }
  return absl::OkStatus();
}

// Reads the numbers of experts and groups and the weights; V3's defaults apply if `v3`.
absl::StatusOr<MoeSpec> ReadMoe(const JsonSource& config, bool v3) {
  MoeSpec moe;
  RouteRule& rule = moe.rule;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts,
                          config.DimOr("n_routed_experts", kernels::kMaxExperts, v3 ? 256 : 64));
  HEDDLE_ASSIGN_OR_RETURN(rule.top_k, v3 ? config.DimOr(kTopKName, kernels::kMaxExperts, 8)
                                         : config.Dim(kTopKName, kernels::kMaxExperts));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kTopKName, moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter,
                          config.DimOr("moe_intermediate_size", kMaxInter, v3 ? 2048 : 1407));
  HEDDLE_ASSIGN_OR_RETURN(double scale,
                          config.PositiveOr("routed_scaling_factor", kMaxFactor, v3 ? 2.5 : 1.0));
  rule.scale = static_cast<float>(scale);
  HEDDLE_ASSIGN_OR_RETURN(rule.renormalise, config.BoolOr("norm_topk_prob", v3));
  return moe;
}

absl::Status ReadGroups(const JsonSource& config, int32_t absent, int32_t absent_top,
                        MoeSpec* moe) {
  HEDDLE_ASSIGN_OR_RETURN(moe->rule.n_groups,
                          config.DimOr("n_group", kernels::kMaxExpertGroups, absent));
  HEDDLE_ASSIGN_OR_RETURN(moe->rule.top_groups,
                          config.DimOr("topk_group", kernels::kMaxExpertGroups, absent_top));
  return CheckGroups(config, "n_group", "topk_group", *moe);
}

// The values of keys that a configuration leaves out.
struct AbsentKeys {
  MlaSpec mla;
  int32_t n_groups = 1;
  int32_t top_groups = 1;
  RopeLayout index_layout = RopeLayout::kHalf;
  int32_t index_heads = 64;
};

// Whether each layer has an indexer of its own: a list or a pattern names those that do, or they
// are the first few and every n-th behind them.
absl::StatusOr<std::vector<bool>> ReadIndexerTypes(const JsonSource& config, int32_t n_layers) {
  constexpr std::string_view kTypes = "indexer_types";
  constexpr std::string_view kPattern = "index_topk_pattern";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t frequency, config.DimOr("index_topk_freq", kMaxLayers, 1));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t offset,
                          CountOr(config, "index_skip_topk_offset", kMaxLayers, 2));
  std::vector<bool> own;
  bool is_known = true;
  const auto add = [&](bool is_own, bool is_shared) {
    own.push_back(is_own);
    is_known = is_known && (is_own || is_shared);
  };
  const nlohmann::json* types = config.Find(kTypes);
  const nlohmann::json* pattern = config.Find(kPattern);
  const std::string_view key = types != nullptr ? kTypes : kPattern;
  const nlohmann::json* list = types != nullptr ? types : pattern;
  if (list == nullptr) {
    for (int64_t i = 0; i < n_layers; ++i) {
      own.push_back(std::max<int64_t>(i - offset + 1, 0) % frequency == 0);
    }
    return own;
  }
  if (list->is_string()) {
    for (const char c : list->get_ref<const std::string&>()) add(c == 'F', c == 'S');
  } else if (list->is_array()) {
    for (const nlohmann::json& type : *list) add(type == "full", type == "shared");
  }
  if (own.size() != static_cast<size_t>(n_layers) || !own.front() || !is_known) {
    return config.Error(key, JsonSource::Show(*list),
                        base::StrCat("one type for each of ", n_layers,
                                     " layers (full or shared, or F or S), the first with an "
                                     "indexer of its own"));
  }
  return own;
}

absl::StatusOr<IndexerSpec> ReadIndexer(const JsonSource& config, const AbsentKeys& absent,
                                        const MlaSpec& mla) {
  IndexerSpec indexer;
  HEDDLE_ASSIGN_OR_RETURN(indexer.n_heads,
                          config.DimOr("index_n_heads", kMaxHeads, absent.index_heads));
  HEDDLE_ASSIGN_OR_RETURN(indexer.head_dim, config.DimOr("index_head_dim", kMaxHeadDim, 128));
  HEDDLE_ASSIGN_OR_RETURN(indexer.top_k, config.DimOr("index_topk", kMaxContext, 2048));
  HEDDLE_ASSIGN_OR_RETURN(
      const bool interleaved,
      config.BoolOr("indexer_rope_interleave", absent.index_layout == RopeLayout::kInterleaved));
  indexer.layout = interleaved ? RopeLayout::kInterleaved : RopeLayout::kHalf;
  HEDDLE_RETURN_IF_ERROR(CheckIndexer(config, "index_head_dim", "q_lora_rank", indexer, mla));
  return indexer;
}

absl::Status ReadIndexers(const JsonSource& config, const AbsentKeys& absent, ModelSpec* spec) {
  const MlaSpec& mla = spec->layers.front().attention.mla;
  HEDDLE_ASSIGN_OR_RETURN(const IndexerSpec indexer, ReadIndexer(config, absent, mla));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> own, ReadIndexerTypes(config, spec->n_layers()));
  ApplyIndexers(indexer, own, spec);
  return absl::OkStatus();
}

// Gives all layers but the first few their experts, and an MLP that all rows share.
absl::Status AddExperts(const JsonSource& config, const MoeSpec& moe, int64_t first_absent,
                        int32_t shared_absent, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(int32_t frequency, config.DimOr("moe_layer_freq", kMaxLayers, 1));
  if (frequency != 1) {
    return config.Unsupported("moe_layer_freq", base::StrCat(frequency), "expected 1");
  }
  constexpr std::string_view kFirst = "first_k_dense_replace";
  int64_t first = first_absent;
  if (config.Has(kFirst)) {
    HEDDLE_ASSIGN_OR_RETURN(first, config.Int(kFirst));
    if (first < 0) return config.Error(kFirst, base::StrCat(first), "a number of layers");
  }
  HEDDLE_ASSIGN_OR_RETURN(int32_t shared,
                          config.DimOr("n_shared_experts", kMaxInter / moe.inter, shared_absent));
  for (int64_t i = first; i < spec->n_layers(); ++i) {
    LayerSpec& layer = spec->layers[static_cast<size_t>(i)];
    layer.moe = moe;
    layer.moe.activation = layer.mlp.activation;
    layer.mlp.inter = shared * moe.inter;
  }
  return absl::OkStatus();
}

// Layers have experts where a list says so; it must say what the number of dense layers does.
absl::Status CheckMlpTypes(const JsonSource& config, const ModelSpec& spec) {
  constexpr std::string_view kTypes = "mlp_layer_types";
  const nlohmann::json* types = config.Find(kTypes);
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array() || types->size() != spec.layers.size()) {
    return config.Error(kTypes, JsonSource::Show(*types),
                        base::StrCat("a list of ", spec.n_layers(), " strings, one per layer"));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool has_experts = (*types)[i] == "sparse";
    if (has_experts != (spec.layers[i].moe.n_experts > 0)) {
      return config.Unsupported(kTypes, JsonSource::Show(*types),
                                "expected dense layers before all others");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadV3(const JsonSource& config, const AbsentKeys& absent, ModelSpec* spec) {
  HEDDLE_RETURN_IF_ERROR(ReadLatentAttention(config, absent.mla, spec));
  HEDDLE_ASSIGN_OR_RETURN(MoeSpec moe, ReadMoe(config, /*v3=*/true));
  moe.rule.score = RouteScore::kSigmoid;
  moe.rule.group_best = 2;
  moe.choice_bias = true;
  HEDDLE_RETURN_IF_ERROR(ReadGroups(config, absent.n_groups, absent.top_groups, &moe));
  return AddExperts(config, moe, /*first_absent=*/3, /*shared_absent=*/1, spec);
}

// All layers have sparse attention, under the name that transformers gives it or gave it.
absl::Status CheckIndexedLayers(const JsonSource& config) {
  constexpr std::string_view kTypes = "layer_types";
  const nlohmann::json* types = config.Find(kTypes);
  if (types == nullptr) return absl::OkStatus();
  for (const nlohmann::json& type : *types) {
    if (type == "indexed_attention" || type == "deepseek_sparse_attention") continue;
    return config.Unsupported(kTypes, JsonSource::Show(type), "expected \"indexed_attention\"");
  }
  return absl::OkStatus();
}

absl::Status ReadSparse(const JsonSource& config, const AbsentKeys& absent, ModelSpec* spec) {
  HEDDLE_RETURN_IF_ERROR(ReadV3(config, absent, spec));
  HEDDLE_RETURN_IF_ERROR(CheckMlpTypes(config, *spec));
  HEDDLE_RETURN_IF_ERROR(CheckIndexedLayers(config));
  return ReadIndexers(config, absent, spec);
}

}  // namespace

void ApplyLatentAttention(const MlaSpec& mla, double sharpness, ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    AttentionSpec& attention = layer.attention;
    attention.mla = mla;
    attention.n_kv_heads = 1;
    attention.head_dim = mla.rope_dim + mla.kv_rank;
    attention.scale = static_cast<float>(sharpness / std::sqrt(static_cast<double>(mla.q_dim())));
    attention.rope.rotary_dim = mla.rope_dim;
  }
}

absl::Status CheckGroups(const ConfigSource& source, std::string_view groups_key,
                         std::string_view top_groups_key, const MoeSpec& moe) {
  const RouteRule& rule = moe.rule;
  if (moe.n_experts % rule.n_groups != 0 || moe.n_experts / rule.n_groups < rule.group_best) {
    return source.Error(groups_key, base::StrCat(rule.n_groups),
                        base::StrCat("a divisor of the number of experts (", moe.n_experts,
                                     ") that leaves groups of at least ", rule.group_best));
  }
  const int32_t reachable = rule.top_groups * (moe.n_experts / rule.n_groups);
  if (rule.top_groups > rule.n_groups || rule.top_k > reachable) {
    return source.Error(
        top_groups_key, base::StrCat(rule.top_groups),
        base::StrCat("at most ", rule.n_groups, ", with room for ", rule.top_k, " experts"));
  }
  return absl::OkStatus();
}

absl::Status CheckIndexer(const ConfigSource& source, std::string_view dim_key,
                          std::string_view rank_key, const IndexerSpec& indexer,
                          const MlaSpec& mla) {
  if (mla.q_rank == 0) {
    return source.Error(rank_key, "missing", "the rank from which the indexer has its queries");
  }
  if (indexer.head_dim < mla.rope_dim || indexer.head_dim * int64_t{indexer.n_heads} > kMaxInter) {
    return source.Error(
        dim_key, base::StrCat(indexer.head_dim),
        base::StrCat("at least the rotated part of a head (", mla.rope_dim, ") and at most ",
                     kMaxInter / indexer.n_heads, " for ", indexer.n_heads, " heads"));
  }
  return absl::OkStatus();
}

void ApplyIndexers(const IndexerSpec& indexer, const std::vector<bool>& own, ModelSpec* spec) {
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    IndexerSpec& layer = spec->layers[i].attention.mla.indexer;
    layer = own[i] ? indexer : IndexerSpec{.top_k = indexer.top_k};
  }
}

absl::Status RefineDeepseekV2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(ReadLatentAttention(config, kAbsentMla, spec));
  HEDDLE_ASSIGN_OR_RETURN(MoeSpec moe, ReadMoe(config, /*v3=*/false));
  moe.rule.renormalise = false;  // as in transformers, whatever norm_topk_prob says
  HEDDLE_ASSIGN_OR_RETURN(std::string method, config.StringOr("topk_method", "greedy"));
  if (method == "group_limited_greedy") {
    HEDDLE_RETURN_IF_ERROR(ReadGroups(config, 1, 1, &moe));
  } else if (method != "greedy") {
    return config.Unsupported("topk_method", base::Quote(method),
                              "supported are greedy and group_limited_greedy");
  }
  return AddExperts(config, moe, /*first_absent=*/0, /*shared_absent=*/2, spec);
}

absl::Status RefineDeepseekV3(const JsonSource& config, ModelSpec* spec, NameMap*) {
  return ReadV3(config, {.mla = kAbsentMla, .n_groups = 8, .top_groups = 4}, spec);
}

absl::Status RefineDeepseekV32(const JsonSource& config, ModelSpec* spec, NameMap*) {
  return ReadSparse(config, {.mla = kAbsentMla, .n_groups = 8, .top_groups = 4}, spec);
}

absl::Status RefineGlmMoeDsa(const JsonSource& config, ModelSpec* spec, NameMap*) {
  return ReadSparse(
      config,
      {.mla = {.kv_rank = 512, .q_rank = 2048, .nope_dim = 192, .rope_dim = 64, .v_dim = 256},
       .index_layout = RopeLayout::kInterleaved,
       .index_heads = 32},
      spec);
}

absl::Status RefineYoutu(const JsonSource& config, ModelSpec* spec, NameMap*) {
  static_cast<void>(config.Has("embedding_initializer_range"));
  return ReadLatentAttention(config, kAbsentMla, spec);
}

// Layers have experts where a list says so, and without it all but the first.
absl::Status RefineGlm4MoeLite(const JsonSource& config, ModelSpec* spec, NameMap*) {
  const MlaSpec absent{
      .kv_rank = 512, .q_rank = 768, .nope_dim = 192, .rope_dim = 64, .v_dim = 256};
  HEDDLE_RETURN_IF_ERROR(ReadLatentAttention(config, absent, spec));
  HEDDLE_ASSIGN_OR_RETURN(
      MoeSpec moe,
      ReadSigmoidExperts(config, {.experts = 64, .top_k = 4, .inter = 1536, .renormalise = true}));
  HEDDLE_ASSIGN_OR_RETURN(const double scale,
                          config.PositiveOr("routed_scaling_factor", kMaxFactor, 1.8));
  moe.rule.scale = static_cast<float>(scale);
  HEDDLE_RETURN_IF_ERROR(AddExperts(config, moe, /*first_absent=*/1, /*shared_absent=*/1, spec));
  return CheckMlpTypes(config, *spec);
}

}  // namespace heddle::engine
