// Reads layers of Mamba-2: the keys and names that Granite 4 has, and those of GGUF.
#include <algorithm>
#include <cmath>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/recurrent_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using kernels::RecurrenceShape;

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

void Apply(RecurrenceSpec recurrence, const std::vector<bool>& recurs, ModelSpec* spec) {
  recurrence.norm_width = recurrence.shape.values() / recurrence.shape.n_key_heads;
  for (size_t i = 0; i < recurs.size(); ++i) {
    if (recurs[i]) Recur(recurrence, i, spec);
  }
}

// Bounds of the step: null and absent ends are open.
absl::Status ReadStepLimits(const JsonSource& config, RecurrenceSpec* recurrence) {
  constexpr std::string_view kKey = "time_step_limit";
  const nlohmann::json* limits = config.Find(kKey);
  if (limits == nullptr || limits->is_null()) return absl::OkStatus();
  const auto is_limit = [](const nlohmann::json& limit) {
    return limit.is_null() || (limit.is_number() && limit.get<double>() >= 0);
  };
  if (!limits->is_array() || limits->size() != 2 ||
      !std::all_of(limits->begin(), limits->end(), is_limit)) {
    return config.Error(kKey, JsonSource::Show(*limits), "a list of two numbers, 0 or more");
  }
  if (limits->at(0).is_number()) recurrence->min_step = limits->at(0).get<float>();
  if (limits->at(1).is_number()) {
    recurrence->max_step =
        static_cast<float>(std::min(limits->at(1).get<double>(), double{recurrence->max_step}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMamba2(const JsonSource& config, const std::vector<bool>& recurs,
                        ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const double eps, config.PositiveOr("rms_norm_eps", 1.0, 1e-6));
  RecurrenceSpec recurrence = Mamba2(eps);
  recurrence.decay_is_log = true;
  RecurrenceShape& shape = recurrence.shape;
  HEDDLE_ASSIGN_OR_RETURN(shape.n_heads, config.DimOr("mamba_n_heads", kMaxHeads, 128));
  HEDDLE_ASSIGN_OR_RETURN(shape.n_key_heads, config.DimOr("mamba_n_groups", kMaxHeads, 1));
  HEDDLE_ASSIGN_OR_RETURN(shape.key_dim, config.DimOr("mamba_d_state", kMaxStateDim, 256));
  HEDDLE_ASSIGN_OR_RETURN(shape.taps, config.DimOr("mamba_d_conv", kMaxStateDim, 4));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t expand, config.DimOr("mamba_expand", kMaxStateDim, 2));
  const int64_t inner = int64_t{expand} * spec->hidden;
  if (inner % shape.n_heads != 0 || inner / shape.n_heads > kMaxStateDim) {
    return config.Error("mamba_n_heads", base::StrCat(shape.n_heads),
                        base::StrCat("a divisor of mamba_expand * hidden_size (", inner,
                                     "), with heads of at most ", kMaxStateDim));
  }
  shape.value_dim = static_cast<int32_t>(inner / shape.n_heads);
  const nlohmann::json* head = config.Find("mamba_d_head");
  if (head != nullptr && *head != "auto" && *head != shape.value_dim) {
    return config.Error(
        "mamba_d_head", JsonSource::Show(*head),
        base::StrCat("mamba_expand * hidden_size / mamba_n_heads (", shape.value_dim, ")"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckRecurrence(config, "mamba_n_heads", "mamba_d_conv", shape));
  HEDDLE_ASSIGN_OR_RETURN(recurrence.conv_bias, config.BoolOr("mamba_conv_bias", true));
  HEDDLE_ASSIGN_OR_RETURN(recurrence.bias, config.BoolOr("mamba_proj_bias", false));
  HEDDLE_RETURN_IF_ERROR(ReadStepLimits(config, &recurrence));
  if (spec->layers.front().mlp.activation != Activation::kSilu) {
    return config.Unsupported("hidden_act", "another", "expected \"silu\"");
  }
  Apply(recurrence, recurs, spec);
  return absl::OkStatus();
}

void SetMamba2Names(LayerNames* layer) {
  layer->conv = "layers.{}.mamba.conv1d.weight";
  layer->conv_bias = "layers.{}.mamba.conv1d.bias";
  layer->conv_in = "layers.{}.mamba.in_proj.weight";
  layer->conv_in_bias = "layers.{}.mamba.in_proj.bias";
  layer->conv_out = "layers.{}.mamba.out_proj.weight";
  layer->conv_out_bias = "layers.{}.mamba.out_proj.bias";
  layer->recur_decay = "layers.{}.mamba.A_log";
  layer->recur_step_bias = "layers.{}.mamba.dt_bias";
  layer->recur_skip = "layers.{}.mamba.D";
  layer->recur_norm = "layers.{}.mamba.norm.weight";
}

// Layers recur where no key head is counted.
absl::Status ReadGgufMamba2(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names) {
  constexpr std::string_view kHeadCounts = "attention.head_count_kv";
  if (!source.IsArray(kHeadCounts)) {
    return source.Error(kHeadCounts, "one number", "an array, one per layer");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, source.Ints(kHeadCounts));
  if (counts.size() != spec->layers.size()) {
    return source.Error(kHeadCounts, base::StrCat("an array of ", counts.size()),
                        base::StrCat("one of ", spec->n_layers(), ", one per layer"));
  }
  const int32_t kv_heads = spec->layers.front().attention.n_kv_heads;
  std::vector<bool> recurs;
  for (const int64_t count : counts) {
    recurs.push_back(count == 0);
    if (count == 0 || count == kv_heads) continue;
    return source.Unsupported(kHeadCounts, base::StrCat(count),
                              base::StrCat("expected 0 or ", kv_heads, " in each layer"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const double eps,
                          source.Positive("attention.layer_norm_rms_epsilon", 1.0));
  RecurrenceSpec recurrence = Mamba2(eps);
  RecurrenceShape& shape = recurrence.shape;
  HEDDLE_RETURN_IF_ERROR(ReadGgufRecurrence(source, &shape));
  LayerNames& layer = names->layer;
  const auto first = std::find(recurs.begin(), recurs.end(), true) - recurs.begin();
  const std::string prefix = base::StrCat("blk.", first, ".");
  recurrence.conv_bias = find(prefix + "ssm_conv1d.bias") != nullptr;
  recurrence.bias = find(prefix + "ssm_in.bias") != nullptr;
  layer.conv = "blk.{}.ssm_conv1d.weight";
  layer.conv_bias = "blk.{}.ssm_conv1d.bias";
  layer.conv_in = "blk.{}.ssm_in.weight";
  layer.conv_in_bias = "blk.{}.ssm_in.bias";
  layer.conv_out = "blk.{}.ssm_out.weight";
  layer.conv_out_bias = "blk.{}.ssm_out.bias";
  layer.recur_decay = "blk.{}.ssm_a";
  layer.recur_step_bias = "blk.{}.ssm_dt.bias";
  layer.recur_skip = "blk.{}.ssm_d";
  layer.recur_norm = "blk.{}.ssm_norm.weight";
  // Files without recurrent layers use it, those with them need not.
  HEDDLE_ASSIGN_OR_RETURN(const bool rotates, source.BoolOr("rope.scaling.finetuned", true));
  for (LayerSpec& each : spec->layers) {
    if (!rotates) each.attention.rope = RopeSpec{};
  }
  Apply(recurrence, recurs, spec);
  return absl::OkStatus();
}

}  // namespace heddle::engine
