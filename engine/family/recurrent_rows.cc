#include "engine/family/recurrent_rows.h"

#include <algorithm>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/family_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using kernels::RecurrenceShape;
using nlohmann::json;

constexpr std::string_view kQwen3NextArchitectures[] = {"Qwen3NextForCausalLM"};
constexpr std::string_view kQwen3NextGguf[] = {"qwen3next"};
constexpr std::string_view kQwen35Architectures[] = {"Qwen3_5ForCausalLM",
                                                     "Qwen3_5ForConditionalGeneration",
                                                     "Qwen3_5TextForSequenceClassification"};
constexpr std::string_view kQwen35Gguf[] = {"qwen35"};
constexpr std::string_view kQwen35MoeArchitectures[] = {"Qwen3_5MoeForCausalLM",
                                                        "Qwen3_5MoeForConditionalGeneration"};
constexpr std::string_view kQwen35MoeGguf[] = {"qwen35moe"};

// Every fourth layer attends where nothing says so.
constexpr int32_t kAbsentInterval = 4;

// Whether each layer recurs: by "layer_types", or all but each n-th.
absl::StatusOr<std::vector<bool>> ReadRecurrent(const JsonSource& config, int32_t n_layers) {
  std::vector<bool> recurs(static_cast<size_t>(n_layers));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t interval,
                          config.DimOr("full_attention_interval", kMaxLayers, kAbsentInterval));
  const json* types = config.Find("layer_types");
  if (types == nullptr) {
    for (int32_t i = 0; i < n_layers; ++i) {
      recurs[static_cast<size_t>(i)] = (i + 1) % interval != 0;
    }
    return recurs;
  }
  if (!types->is_array() || types->size() != recurs.size()) {
    return config.Error("layer_types", JsonSource::Show(*types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  for (size_t i = 0; i < recurs.size(); ++i) {
    const json& type = (*types)[i];
    if (type != "linear_attention" && type != "full_attention") {
      return config.Unsupported("layer_types", JsonSource::Show(type),
                                "supported are \"full_attention\" and \"linear_attention\"");
    }
    recurs[i] = type == "linear_attention";
  }
  return recurs;
}

// The heads' outputs in layers that attend are gated.
void ApplyGatedDelta(RecurrenceSpec recurrence, const std::vector<bool>& recurs, ModelSpec* spec) {
  recurrence.norm_width = recurrence.shape.value_dim;
  recurrence.norm_eps = spec->norm_eps;
  for (size_t i = 0; i < recurs.size(); ++i) {
    if (recurs[i]) {
      Recur(recurrence, i, spec);
    } else {
      spec->layers[i].attention.gated = true;
    }
  }
}

absl::Status ReadGatedDelta(const JsonSource& config, RecurrenceRows rows, ModelSpec* spec) {
  RecurrenceSpec recurrence;
  recurrence.rows = rows;
  recurrence.decay_is_log = true;
  RecurrenceShape& shape = recurrence.shape;
  const struct {
    std::string_view key;
    int64_t max;
    int32_t absent;
    int32_t* value;
  } sizes[] = {{"linear_num_value_heads", kMaxHeads, 32, &shape.n_heads},
               {"linear_num_key_heads", kMaxHeads, 16, &shape.n_key_heads},
               {"linear_key_head_dim", kMaxStateDim, 128, &shape.key_dim},
               {"linear_value_head_dim", kMaxStateDim, 128, &shape.value_dim},
               {"linear_conv_kernel_dim", kMaxStateDim, 4, &shape.taps}};
  for (const auto& [key, max, absent, value] : sizes) {
    HEDDLE_ASSIGN_OR_RETURN(*value, config.DimOr(key, max, absent));
  }
  HEDDLE_RETURN_IF_ERROR(
      CheckRecurrence(config, "linear_num_value_heads", "linear_conv_kernel_dim", shape));
  if (spec->layers.front().mlp.activation != Activation::kSilu) {
    return config.Unsupported("hidden_act", "another", "expected \"silu\"");
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool gated, config.BoolOr("attn_output_gate", true));
  if (!gated) return config.Unsupported("attn_output_gate", "false", "expected true");
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> recurs, ReadRecurrent(config, spec->n_layers()));
  static_cast<void>(config.Has("mamba_ssm_dtype"));  // state is F32
  ApplyGatedDelta(recurrence, recurs, spec);
  return absl::OkStatus();
}

absl::Status RefineQwen3Next(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineQwen3NextMoe(config, spec, names));
  return ReadGatedDelta(config, RecurrenceRows::kByKeyHead, spec);
}

absl::Status RefineQwen35(const JsonSource& config, ModelSpec* spec, NameMap*) {
  return ReadGatedDelta(config, RecurrenceRows::kInOrder, spec);
}

absl::Status RefineQwen35Moe(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineQwen35Experts(config, spec, names));
  return ReadGatedDelta(config, RecurrenceRows::kInOrder, spec);
}

// Layers recur as an array says, or all but each n-th.
absl::StatusOr<std::vector<bool>> ReadGgufRecurrent(const GgufSource& source, int32_t n_layers) {
  constexpr std::string_view kList = "attention.recurrent_layers";
  std::vector<bool> recurs(static_cast<size_t>(n_layers));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t interval,
                          source.DimOr("full_attention_interval", kMaxLayers, kAbsentInterval));
  for (int32_t i = 0; i < n_layers; ++i) recurs[static_cast<size_t>(i)] = (i + 1) % interval != 0;
  if (!source.Has(kList)) return recurs;
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> list, source.Ints(kList));
  if (list.size() < recurs.size()) {
    return source.Error(kList, base::StrCat("an array of ", list.size()),
                        base::StrCat("one of ", n_layers, ", one per layer"));
  }
  for (size_t i = 0; i < recurs.size(); ++i) recurs[i] = list[i] != 0;
  return recurs;
}

void SetGgufNames(const TensorFinder& find, size_t recurrent_layer, LayerNames* layer,
                  RecurrenceRows* rows) {
  const std::string prefix = base::StrCat("blk.", recurrent_layer, ".");
  layer->q = "blk.{}.attn_q.weight";
  layer->k = "blk.{}.attn_k.weight";
  layer->v = "blk.{}.attn_v.weight";
  layer->qkv.clear();
  layer->conv = "blk.{}.ssm_conv1d.weight";
  layer->conv_in = "blk.{}.attn_qkv.weight";
  layer->conv_out = "blk.{}.ssm_out.weight";
  layer->recur_decay = "blk.{}.ssm_a";
  layer->recur_step_bias = "blk.{}.ssm_dt.bias";
  layer->recur_norm = "blk.{}.ssm_norm.weight";
  if (find(prefix + "ssm_in.weight") != nullptr) {  // as older converters wrote it
    layer->conv_in = "blk.{}.ssm_in.weight";
    *rows = RecurrenceRows::kByKeyHead;
  } else {
    layer->recur_gate = "blk.{}.attn_gate.weight";
  }
  if (find(prefix + "ssm_ba.weight") != nullptr) {
    layer->recur_beta_step = "blk.{}.ssm_ba.weight";
    if (*rows == RecurrenceRows::kInOrder) *rows = RecurrenceRows::kStepsByKeyHead;
  } else {
    layer->recur_beta = "blk.{}.ssm_beta.weight";
    layer->recur_step = "blk.{}.ssm_alpha.weight";
  }
  layer->mlp_norm = "blk.{}.post_attention_norm.weight";
}

// `tiled`: the converter puts heads that share a key head apart.
absl::Status RefineGguf(const GgufSource& source, const TensorFinder& find, bool tiled,
                        ModelSpec* spec, NameMap* names) {
  RecurrenceSpec recurrence;
  RecurrenceShape& shape = recurrence.shape;
  shape.tiled = tiled;
  HEDDLE_RETURN_IF_ERROR(ReadGgufRecurrence(source, &shape));
  static_cast<void>(source.Has("rope.dimension_sections"));  // alike for text
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> recurs,
                          ReadGgufRecurrent(source, spec->n_layers()));
  const auto first = std::find(recurs.begin(), recurs.end(), true);
  if (first != recurs.end()) {
    SetGgufNames(find, static_cast<size_t>(first - recurs.begin()), &names->layer,
                 &recurrence.rows);
  }
  ApplyGatedDelta(recurrence, recurs, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufQwen3Next(const GgufSource& source, const TensorFinder& find,
                                 ModelSpec* spec, NameMap* names) {
  return RefineGguf(source, find, /*tiled=*/false, spec, names);
}
absl::Status RefineGgufQwen35(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  return RefineGguf(source, find, /*tiled=*/true, spec, names);
}

// Adds the names of gated delta nets. `apart`: z, b and a have tensors of their own.
void AddDeltaNames(bool apart, LayerNames* layer) {
  layer->conv = "layers.{}.linear_attn.conv1d.weight";
  layer->conv_out = "layers.{}.linear_attn.out_proj.weight";
  layer->recur_decay = "layers.{}.linear_attn.A_log";
  layer->recur_step_bias = "layers.{}.linear_attn.dt_bias";
  layer->recur_norm = "layers.{}.linear_attn.norm.weight";
  if (apart) {
    layer->conv_in = "layers.{}.linear_attn.in_proj_qkv.weight";
    layer->recur_gate = "layers.{}.linear_attn.in_proj_z.weight";
    layer->recur_beta = "layers.{}.linear_attn.in_proj_b.weight";
    layer->recur_step = "layers.{}.linear_attn.in_proj_a.weight";
  } else {
    layer->conv_in = "layers.{}.linear_attn.in_proj_qkvz.weight";
    layer->recur_beta_step = "layers.{}.linear_attn.in_proj_ba.weight";
  }
}

// The names of `base` with those of gated delta nets.
NameMap WithDelta(const NameMap& base, bool apart) {
  NameMap names = base;
  AddDeltaNames(apart, &names.layer);
  return names;
}

struct DeltaNames {
  NameMap dense, experts, stacked, experts_apart, stacked_apart;
};
const DeltaNames& NamesOf(const RecurrentBases& bases) {
  static const DeltaNames names = {
      .dense = WithDelta(*bases.qwen3.names, true),
      .experts = WithDelta(*bases.qwen2_moe.names, false),
      .stacked = WithDelta(*bases.qwen2_moe.stacked_names, false),
      .experts_apart = WithDelta(*bases.qwen2_moe.names, true),
      .stacked_apart = WithDelta(*bases.qwen2_moe.stacked_names, true)};
  return names;
}

Family WithGatedDelta(Family row) {
  row.head_dim = 256;
  row.norm_weight_offset = 1.0f;
  row.rotary_part = 0.25;
  row.max_context = 32768;
  row.qk_norm = QkNorm::kPerHead;
  row.qkv_bias = row.out_bias = Flag::Key("attention_bias", false);
  row.window = WindowRule::kNone;
  row.gguf_renormalise = true;
  return row;
}

Family Qwen3Next(const RecurrentBases& bases) {
  Family next = WithGatedDelta(bases.qwen2_moe);
  next.name = next.model_type = "qwen3_next";
  next.architectures = kQwen3NextArchitectures;
  next.gguf_architectures = kQwen3NextGguf;
  next.names = &NamesOf(bases).experts;
  next.stacked_names = &NamesOf(bases).stacked;
  next.refine = RefineQwen3Next;
  next.refine_gguf = RefineGgufQwen3Next;
  return next;
}

Family Qwen35(const RecurrentBases& bases) {
  Family dense = WithGatedDelta(bases.qwen3);
  dense.name = "qwen3_5";
  dense.model_type = "qwen3_5_text";
  dense.architectures = kQwen35Architectures;
  dense.gguf_architectures = kQwen35Gguf;
  dense.names = &NamesOf(bases).dense;
  dense.refine = RefineQwen35;
  dense.refine_gguf = RefineGgufQwen35;
  return dense;
}

Family Qwen35Moe(const RecurrentBases& bases) {
  Family moe = WithGatedDelta(bases.qwen2_moe);
  moe.name = "qwen3_5_moe";
  moe.model_type = "qwen3_5_moe_text";
  moe.architectures = kQwen35MoeArchitectures;
  moe.gguf_architectures = kQwen35MoeGguf;
  moe.names = &NamesOf(bases).experts_apart;
  moe.stacked_names = &NamesOf(bases).stacked_apart;
  moe.inter_per_hidden = 1;  // no layer has a dense MLP
  moe.refine = RefineQwen35Moe;
  moe.refine_gguf = RefineGgufQwen35;
  return moe;
}

}  // namespace

void Recur(const RecurrenceSpec& recurrence, size_t index, ModelSpec* spec) {
  AttentionSpec& attention = spec->layers[index].attention;
  attention.n_heads = attention.n_kv_heads = 0;
  attention.rope = RopeSpec{};
  attention.recurrence = recurrence;
}

absl::Status ReadGgufRecurrence(const GgufSource& source, RecurrenceShape* shape) {
  HEDDLE_ASSIGN_OR_RETURN(shape->taps, source.Dim("ssm.conv_kernel", kMaxStateDim));
  HEDDLE_ASSIGN_OR_RETURN(shape->key_dim, source.Dim("ssm.state_size", kMaxStateDim));
  HEDDLE_ASSIGN_OR_RETURN(shape->n_key_heads, source.Dim("ssm.group_count", kMaxHeads));
  HEDDLE_ASSIGN_OR_RETURN(shape->n_heads, source.Dim("ssm.time_step_rank", kMaxHeads));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t values, source.Dim("ssm.inner_size", kMaxInter));
  if (values % shape->n_heads != 0 || values / shape->n_heads > kMaxStateDim) {
    return source.Error("ssm.inner_size", base::StrCat(values),
                        base::StrCat("a multiple of \"ssm.time_step_rank\" (", shape->n_heads,
                                     "), at most ", kMaxStateDim, " times"));
  }
  shape->value_dim = values / shape->n_heads;
  return CheckRecurrence(source, "ssm.time_step_rank", "ssm.conv_kernel", *shape);
}

absl::Status CheckRecurrence(const ConfigSource& source, std::string_view heads_key,
                             std::string_view taps_key, const RecurrenceShape& shape) {
  if (shape.n_heads % shape.n_key_heads != 0) {
    return source.Error(
        heads_key, base::StrCat(shape.n_heads),
        base::StrCat("a multiple of the number of key heads (", shape.n_key_heads, ")"));
  }
  if (shape.taps > kernels::kScanRows) {
    return source.Unsupported(taps_key, base::StrCat(shape.taps),
                              base::StrCat("supported are up to ", kernels::kScanRows));
  }
  if (const int64_t floats = kernels::RecurrenceState(shape).floats; floats > kMaxSnapshotFloats) {
    return source.Unsupported(heads_key, base::StrCat(shape.n_heads),
                              base::StrCat("a layer's state has ", floats, " numbers, at most ",
                                           kMaxSnapshotFloats, " are supported"));
  }
  return absl::OkStatus();
}

std::vector<Family> RecurrentRows(const RecurrentBases& bases) {
  return {Qwen3Next(bases), Qwen35(bases), Qwen35Moe(bases)};
}

}  // namespace heddle::engine
