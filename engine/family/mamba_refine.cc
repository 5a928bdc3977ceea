#include "engine/family/mamba_refine.h"

#include <algorithm>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/recurrent_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using kernels::RecurrenceShape;

// Bounds of the step. Null and absent ends are open, and so is infinity as transformers 5 writes
// it.
absl::Status ReadStepLimits(const JsonSource& config, RecurrenceSpec* recurrence) {
  constexpr std::string_view kKey = "time_step_limit";
  const nlohmann::json* limits = config.Find(kKey);
  if (limits == nullptr || limits->is_null()) return absl::OkStatus();
  const nlohmann::json infinity = {{"__float__", "Infinity"}};
  const auto is_limit = [&](const nlohmann::json& limit) {
    return limit.is_null() || limit == infinity || (limit.is_number() && limit.get<double>() >= 0);
  };
  if (!limits->is_array() || limits->size() != 2 ||
      !std::all_of(limits->begin(), limits->end(), is_limit)) {
    return config.Error(kKey, JsonSource::Show(*limits), "a list of two numbers, 0 or more");
  }
  const double open = recurrence->max_step;
  const auto bound = [&](size_t i, double absent) {
    const nlohmann::json& limit = limits->at(i);
    return static_cast<float>(std::min(limit.is_number() ? limit.get<double>() : absent, open));
  };
  recurrence->min_step = bound(0, 0.0);
  recurrence->max_step = bound(1, open);
  return absl::OkStatus();
}

// The values of a head: those of all heads, divided, which the key of one head's has to agree with.
absl::StatusOr<int32_t> ReadValueDim(const JsonSource& config, const Mamba2Keys& keys,
                                     int32_t n_heads, int32_t hidden) {
  constexpr int32_t kAbsentHead = 64;
  if (keys.expand.empty()) return config.DimOr(keys.head_dim, kMaxStateDim, kAbsentHead);
  HEDDLE_ASSIGN_OR_RETURN(const int32_t expand, config.DimOr(keys.expand, kMaxStateDim, 2));
  int64_t inner = int64_t{expand} * hidden;
  std::string meaning = base::StrCat(keys.expand, " * hidden_size");
  if (!keys.inner.empty() && !config.IsNull(keys.inner)) {
    HEDDLE_ASSIGN_OR_RETURN(inner, config.DimOr(keys.inner, kMaxInter, keys.absent_inner));
    meaning = std::string(keys.inner);
  }
  if (inner % n_heads != 0 || inner / n_heads > kMaxStateDim) {
    return config.Error(keys.n_heads, base::StrCat(n_heads),
                        base::StrCat("a divisor of ", meaning, " (", inner,
                                     "), with heads of at most ", kMaxStateDim));
  }
  const auto value_dim = static_cast<int32_t>(inner / n_heads);
  const nlohmann::json* head = config.Find(keys.head_dim);
  if (head != nullptr && *head != "auto" && *head != value_dim) {
    return config.Error(keys.head_dim, JsonSource::Show(*head),
                        base::StrCat(meaning, " / ", keys.n_heads, " (", value_dim, ")"));
  }
  return value_dim;
}

}  // namespace

// The spec's norms may have another epsilon, with which a scaled stream has the same results.
RecurrenceSpec Mamba2(double norm_eps) {
  RecurrenceSpec recurrence;
  recurrence.shape.rule = kernels::RecurrenceRule::kMamba2;
  recurrence.rows = RecurrenceRows::kMamba2;
  recurrence.skip = true;
  recurrence.norm_per_value = true;
  recurrence.gates_first = true;
  recurrence.norm_eps = static_cast<float>(norm_eps);
  return recurrence;
}

absl::StatusOr<RecurrenceSpec> ReadMamba2(const JsonSource& config, const Mamba2Keys& keys,
                                          const ModelSpec& spec) {
  HEDDLE_ASSIGN_OR_RETURN(const double eps, config.PositiveOr(keys.norm_eps, 1.0, keys.absent_eps));
  RecurrenceSpec recurrence = Mamba2(eps);
  recurrence.decay_is_log = true;
  RecurrenceShape& shape = recurrence.shape;
  HEDDLE_ASSIGN_OR_RETURN(shape.n_heads, config.DimOr(keys.n_heads, kMaxHeads, 128));
  HEDDLE_ASSIGN_OR_RETURN(shape.n_key_heads,
                          config.DimOr(keys.n_groups, kMaxHeads, keys.absent_groups));
  HEDDLE_ASSIGN_OR_RETURN(shape.key_dim, config.DimOr(keys.state, kMaxStateDim, keys.absent_state));
  HEDDLE_ASSIGN_OR_RETURN(shape.taps, config.DimOr(keys.taps, kMaxStateDim, 4));
  HEDDLE_ASSIGN_OR_RETURN(shape.value_dim, ReadValueDim(config, keys, shape.n_heads, spec.hidden));
  HEDDLE_RETURN_IF_ERROR(CheckRecurrence(config, keys.n_heads, keys.taps, shape));
  recurrence.norm_width = shape.values() / shape.n_key_heads;
  HEDDLE_ASSIGN_OR_RETURN(recurrence.conv_bias, config.BoolOr(keys.conv_bias, true));
  HEDDLE_ASSIGN_OR_RETURN(recurrence.bias, config.BoolOr(keys.bias, false));
  HEDDLE_RETURN_IF_ERROR(ReadStepLimits(config, &recurrence));
  HEDDLE_ASSIGN_OR_RETURN(const std::string activation, config.StringOr(keys.activation, "silu"));
  if (FindActivation(activation) != Activation::kSilu) {
    return config.Unsupported(keys.activation, base::Quote(activation), "expected \"silu\"");
  }
  SkipMamba2Keys(config);
  return recurrence;
}

void SkipMamba2Keys(const JsonSource& config) {
  for (const std::string_view key :
       {"chunk_size", "mamba_chunk_size", "mamba_ssm_cache_dtype", "num_logits_to_keep",
        "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_init_scheme",
        "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "time_step_scale",
        "use_mamba_kernels"}) {
    static_cast<void>(config.Has(key));
  }
}

void SetMamba2Names(std::string_view module, LayerNames* layer) {
  const auto name = [module](std::string_view part) { return base::StrCat(module, ".", part); };
  layer->conv = name("conv1d.weight");
  layer->conv_bias = name("conv1d.bias");
  layer->conv_in = name("in_proj.weight");
  layer->conv_in_bias = name("in_proj.bias");
  layer->conv_out = name("out_proj.weight");
  layer->conv_out_bias = name("out_proj.bias");
  layer->recur_decay = name("A_log");
  layer->recur_step_bias = name("dt_bias");
  layer->recur_skip = name("D");
  layer->recur_norm = name("norm.weight");
}

absl::StatusOr<RecurrenceSpec> ReadGgufMamba2(const GgufSource& source, const TensorFinder& find,
                                              int64_t first) {
  HEDDLE_ASSIGN_OR_RETURN(const double eps,
                          source.Positive("attention.layer_norm_rms_epsilon", 1.0));
  RecurrenceSpec recurrence = Mamba2(eps);
  HEDDLE_RETURN_IF_ERROR(ReadGgufRecurrence(source, &recurrence.shape));
  const RecurrenceShape& shape = recurrence.shape;
  const std::string prefix = base::StrCat("blk.", first, ".");
  recurrence.conv_bias = find(prefix + "ssm_conv1d.bias") != nullptr;
  recurrence.bias = find(prefix + "ssm_in.bias") != nullptr;
  const bool has_norm = find(prefix + "ssm_norm.weight") != nullptr;
  recurrence.norm_width = has_norm ? shape.values() / shape.n_key_heads : 0;
  return recurrence;
}

void SetGgufMamba2Names(LayerNames* layer) {
  layer->conv = "blk.{}.ssm_conv1d.weight";
  layer->conv_bias = "blk.{}.ssm_conv1d.bias";
  layer->conv_in = "blk.{}.ssm_in.weight";
  layer->conv_in_bias = "blk.{}.ssm_in.bias";
  layer->conv_out = "blk.{}.ssm_out.weight";
  layer->conv_out_bias = "blk.{}.ssm_out.bias";
  layer->recur_decay = "blk.{}.ssm_a";
  layer->recur_step_bias = "blk.{}.ssm_dt.bias";
  layer->recur_skip = "blk.{}.ssm_d";
  layer->recur_norm = "blk.{}.ssm_norm.weight";
}

absl::StatusOr<std::vector<int64_t>> ReadGgufKvHeads(const GgufSource& source, int32_t n_kv_heads,
                                                     const ModelSpec& spec) {
  constexpr std::string_view kHeadCounts = "attention.head_count_kv";
  if (!source.IsArray(kHeadCounts)) {
    return source.Error(kHeadCounts, "one number", "an array, one per layer");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<int64_t> counts, source.Ints(kHeadCounts));
  if (counts.size() < spec.layers.size()) {
    return source.Error(kHeadCounts, base::StrCat("an array of ", counts.size()),
                        base::StrCat("one of ", spec.n_layers(), ", one per layer"));
  }
  counts.resize(spec.layers.size());
  for (const int64_t count : counts) {
    if (count == 0 || count == n_kv_heads) continue;
    return source.Unsupported(kHeadCounts, base::StrCat(count),
                              base::StrCat("expected 0 or ", n_kv_heads, " in each layer"));
  }
  return counts;
}

absl::StatusOr<RecurrentLayers> ReadGgufRecurrentLayers(const GgufSource& source,
                                                        const ModelSpec& spec) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads,
                          ReadGgufKvHeads(source, spec.layers.front().attention.n_kv_heads, spec));
  RecurrentLayers layers;
  layers.recurs.resize(kv_heads.size());
  std::transform(kv_heads.begin(), kv_heads.end(), layers.recurs.begin(),
                 [](int64_t count) { return count == 0; });
  layers.first =
      std::find(layers.recurs.begin(), layers.recurs.end(), true) - layers.recurs.begin();
  return layers;
}

NameMap MixerNames(void (*set_names)(std::string_view module, LayerNames* layer)) {
  NameMap names{
      .embed = "embeddings.weight", .final_norm = "norm_f.weight", .lm_head = "lm_head.weight"};
  names.layer.attn_norm = "layers.{}.norm.weight";
  set_names("layers.{}.mixer", &names.layer);
  return names;
}

void ApplyMamba2(const RecurrenceSpec& recurrence, const std::vector<bool>& recurs,
                 ModelSpec* spec) {
  for (size_t i = 0; i < recurs.size(); ++i) {
    if (recurs[i]) Recur(recurrence, i, spec);
  }
}

void RecurEverywhere(const RecurrenceSpec& recurrence, ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) layer.mlp.inter = 0;
  ApplyMamba2(recurrence, std::vector<bool>(spec->layers.size(), true), spec);
}

absl::Status RefineGgufMambaLayers(const GgufSource& source, const TensorFinder& find,
                                   ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const RecurrentLayers layers, ReadGgufRecurrentLayers(source, *spec));
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence,
                          ReadGgufMamba2(source, find, layers.first));
  SetGgufMamba2Names(&names->layer);
  // Files without recurrent layers use it, those with them need not.
  HEDDLE_ASSIGN_OR_RETURN(const bool rotates, source.BoolOr("rope.scaling.finetuned", true));
  const AttentionSpec& attention = spec->layers.front().attention;
  if (rotates && attention.rope.rotary_dim != attention.head_dim) {
    return source.Unsupported("rope.dimension_count", base::StrCat(attention.rope.rotary_dim),
                              base::StrCat("expected whole heads (", attention.head_dim,
                                           "), over which the converter reorders q and k"));
  }
  for (LayerSpec& each : spec->layers) {
    if (!rotates) each.attention.rope = RopeSpec{};
  }
  ApplyMamba2(recurrence, layers.recurs, spec);
  return absl::OkStatus();
}

}  // namespace heddle::engine
