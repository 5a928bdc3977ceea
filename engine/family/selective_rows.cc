#include "engine/family/selective_rows.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/mamba_refine.h"
#include "engine/family/recurrent_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kMambaArchitectures[] = {"MambaForCausalLM"};
constexpr std::string_view kMambaGguf[] = {"mamba"};
constexpr std::string_view kFalconMambaArchitectures[] = {"FalconMambaForCausalLM"};
constexpr std::string_view kJambaArchitectures[] = {"JambaForCausalLM"};
constexpr std::string_view kJambaGguf[] = {"jamba"};

// transformers' mixer_rms_eps where nothing says so. Files in GGUF have only that of the stream's
// norms.
constexpr double kFactorEps = 1e-6;

// A selective scan of so many channels.
RecurrenceSpec Selective(int32_t channels) {
  RecurrenceSpec recurrence;
  recurrence.shape.rule = kernels::RecurrenceRule::kSelective;
  recurrence.shape.n_heads = recurrence.shape.n_key_heads = 1;
  recurrence.shape.value_dim = channels;
  recurrence.skip = true;
  return recurrence;
}

absl::StatusOr<int32_t> ReadChannels(const JsonSource& config, const SelectiveKeys& keys,
                                     int32_t hidden) {
  if (!keys.inner.empty() && config.Has(keys.inner)) {
    static_cast<void>(config.Has(keys.expand));
    return config.Dim(keys.inner, kMaxInter);
  }
  HEDDLE_ASSIGN_OR_RETURN(const int32_t expand, config.DimOr(keys.expand, kMaxStateDim, 2));
  if (int64_t{expand} * hidden > kMaxInter) {
    return config.Error(keys.expand, base::StrCat(expand),
                        base::StrCat("at most ", kMaxInter / hidden,
                                     ", with which there are up to ", kMaxInter, " channels"));
  }
  return expand * hidden;
}

}  // namespace

absl::StatusOr<RecurrenceSpec> ReadSelective(const JsonSource& config, const SelectiveKeys& keys,
                                             int32_t hidden) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t channels, ReadChannels(config, keys, hidden));
  RecurrenceSpec recurrence = Selective(channels);
  recurrence.decay_is_log = true;
  kernels::RecurrenceShape& shape = recurrence.shape;
  HEDDLE_ASSIGN_OR_RETURN(shape.key_dim, config.DimOr(keys.state, kMaxStateDim, 16));
  HEDDLE_ASSIGN_OR_RETURN(shape.taps, config.DimOr(keys.taps, kMaxStateDim, 4));
  const nlohmann::json* rank = config.Find(keys.rank);
  recurrence.step_rank = (hidden + 15) / 16;
  if (rank != nullptr && *rank != "auto") {
    HEDDLE_ASSIGN_OR_RETURN(recurrence.step_rank, config.Dim(keys.rank, kMaxHidden));
  }
  HEDDLE_ASSIGN_OR_RETURN(recurrence.conv_bias, config.BoolOr(keys.conv_bias, true));
  HEDDLE_ASSIGN_OR_RETURN(recurrence.bias, config.BoolOr(keys.bias, false));
  HEDDLE_RETURN_IF_ERROR(CheckRecurrence(config, keys.state, keys.taps, shape));
  return recurrence;
}

namespace {

absl::StatusOr<RecurrenceSpec> ReadGgufSelective(const GgufSource& source, const TensorFinder& find,
                                                 int64_t first) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t channels, source.Dim("ssm.inner_size", kMaxInter));
  RecurrenceSpec recurrence = Selective(channels);
  kernels::RecurrenceShape& shape = recurrence.shape;
  HEDDLE_ASSIGN_OR_RETURN(shape.key_dim, source.Dim("ssm.state_size", kMaxStateDim));
  HEDDLE_ASSIGN_OR_RETURN(shape.taps, source.Dim("ssm.conv_kernel", kMaxStateDim));
  HEDDLE_ASSIGN_OR_RETURN(recurrence.step_rank, source.Dim("ssm.time_step_rank", kMaxHidden));
  HEDDLE_RETURN_IF_ERROR(CheckRecurrence(source, "ssm.state_size", "ssm.conv_kernel", shape));
  const std::string prefix = base::StrCat("blk.", first, ".");
  recurrence.conv_bias = find(prefix + "ssm_conv1d.bias") != nullptr;
  recurrence.bias = find(prefix + "ssm_in.bias") != nullptr;
  return recurrence;
}

void SetGgufSelectiveNames(LayerNames* layer) {
  SetGgufMamba2Names(layer);
  layer->recur_norm.clear();
  layer->recur_factors = "blk.{}.ssm_x.weight";
  layer->recur_steps = "blk.{}.ssm_dt.weight";
}

// Keys that the class does not look at, and those about training.
void SkipMambaKeys(const JsonSource& config) {
  for (const std::string_view key :
       {"d_inner", "d_model", "fused_add_norm", "n_layer", "rescale_prenorm_residual",
        "residual_in_fp32", "rms_norm", "ssm_cfg", "time_step_floor", "time_step_init_scheme",
        "time_step_max", "time_step_min", "time_step_scale", "use_associative_scan",
        "use_falcon_mambapy", "use_mamba_kernels", "use_mambapy"}) {
    static_cast<void>(config.Has(key));
  }
}

absl::Status CheckSilu(const JsonSource& config) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string activation, config.StringOr("hidden_act", "silu"));
  if (FindActivation(activation) == Activation::kSilu) return absl::OkStatus();
  return config.Unsupported("hidden_act", base::Quote(activation), "expected \"silu\"");
}

absl::Status RefineMamba(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(CheckSilu(config));
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence,
                          ReadSelective(config, SelectiveKeys{}, spec->hidden));
  SkipMambaKeys(config);
  RecurEverywhere(recurrence, spec);
  return absl::OkStatus();
}

// Its norms of the factors have no weights.
absl::Status RefineFalconMamba(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineMamba(config, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const double eps, config.PositiveOr("mixer_rms_eps", 1.0, kFactorEps));
  for (LayerSpec& layer : spec->layers) {
    layer.attention.recurrence.norms_factors = true;
    layer.attention.recurrence.factor_norm_eps = static_cast<float>(eps);
  }
  return absl::OkStatus();
}

// Falcon-Mamba's files are of the same architecture, and say that they have its norms.
absl::Status RefineGgufMamba(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                             NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(RecurrenceSpec recurrence, ReadGgufSelective(source, find, 0));
  HEDDLE_ASSIGN_OR_RETURN(recurrence.norms_factors, source.BoolOr("ssm.dt_b_c_rms", false));
  recurrence.factor_norm_eps = static_cast<float>(kFactorEps);
  SetGgufSelectiveNames(&names->layer);
  static_cast<void>(source.Has("attention.head_count"));  // zero
  RecurEverywhere(recurrence, spec);
  return absl::OkStatus();
}

// Every `period`-th layer from `offset` on.
struct Turns {
  int32_t period = 1;
  int32_t offset = 0;

  bool has(size_t layer) const {
    return static_cast<int32_t>(layer % static_cast<size_t>(period)) == offset;
  }
};

absl::StatusOr<Turns> ReadTurns(const JsonSource& config, const std::string& what, Turns absent) {
  const std::string period = what + "_layer_period", offset = what + "_layer_offset";
  Turns turns = absent;
  HEDDLE_ASSIGN_OR_RETURN(turns.period, config.DimOr(period, kMaxLayers, absent.period));
  if (!config.Has(offset)) return turns;
  HEDDLE_ASSIGN_OR_RETURN(const int64_t first, config.Int(offset));
  if (first < 0 || first >= turns.period) {
    return config.Error(
        offset, base::StrCat(first),
        base::StrCat("from 0 to ", turns.period - 1, ", below ", base::Quote(period)));
  }
  turns.offset = static_cast<int32_t>(first);
  return turns;
}

// Gives layers that attend no positions, and turns the others into scans.
void ApplyJamba(RecurrenceSpec recurrence, const std::vector<bool>& recurs, ModelSpec* spec) {
  recurrence.norms_factors = true;
  recurrence.factor_norm_eps = spec->norm_eps;
  for (size_t i = 0; i < recurs.size(); ++i) {
    spec->layers[i].attention.rope = RopeSpec{};
    if (recurs[i]) Recur(recurrence, i, spec);
  }
}

absl::Status AddJambaExperts(const JsonSource& config, ModelSpec* spec) {
  constexpr std::string_view kTopK = "num_experts_per_tok";
  const std::string_view experts = config.Has("num_experts") ? "num_experts" : "num_local_experts";
  MoeSpec moe;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts, config.DimOr(experts, kernels::kMaxExperts, 16));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, config.DimOr(kTopK, kernels::kMaxExperts, 2));
  HEDDLE_ASSIGN_OR_RETURN(const Turns turns,
                          ReadTurns(config, "expert", {.period = 2, .offset = 1}));
  if (moe.n_experts == 1) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kTopK, moe));
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    if (!turns.has(i)) continue;
    moe.inter = layer.mlp.inter;
    moe.activation = layer.mlp.activation;
    layer.moe = moe;
    layer.mlp.inter = 0;
  }
  return absl::OkStatus();
}

absl::Status RefineJamba(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(CheckSilu(config));
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence,
                          ReadSelective(config, kHybridSelectiveKeys, spec->hidden));
  HEDDLE_ASSIGN_OR_RETURN(const bool norms, config.BoolOr("mamba_inner_layernorms", true));
  if (!norms) return config.Unsupported("mamba_inner_layernorms", "false", "expected true");
  HEDDLE_ASSIGN_OR_RETURN(const Turns attends,
                          ReadTurns(config, "attn", {.period = 8, .offset = 4}));
  for (const std::string_view key : {"calc_logits_for_entire_prompt", "num_logits_to_keep"}) {
    static_cast<void>(config.Has(key));
  }
  SkipMambaKeys(config);
  std::vector<bool> recurs;
  for (size_t i = 0; i < spec->layers.size(); ++i) recurs.push_back(!attends.has(i));
  ApplyJamba(recurrence, recurs, spec);
  return AddJambaExperts(config, spec);
}

absl::Status RefineGgufJamba(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                             NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const RecurrentLayers layers, ReadGgufRecurrentLayers(source, *spec));
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence,
                          ReadGgufSelective(source, find, layers.first));
  LayerNames& layer = names->layer;
  SetGgufSelectiveNames(&layer);
  layer.recur_steps_norm = "blk.{}.ssm_dt_norm.weight";
  layer.recur_key_norm = "blk.{}.ssm_b_norm.weight";
  layer.recur_query_norm = "blk.{}.ssm_c_norm.weight";
  ApplyJamba(recurrence, layers.recurs, spec);
  return absl::OkStatus();
}

}  // namespace

void SetSelectiveNames(std::string_view module, LayerNames* layer) {
  const auto name = [module](std::string_view part) { return base::StrCat(module, ".", part); };
  SetMamba2Names(module, layer);
  layer->recur_norm.clear();
  layer->recur_step_bias = name("dt_proj.bias");
  layer->recur_factors = name("x_proj.weight");
  layer->recur_steps = name("dt_proj.weight");
}

namespace {

const NameMap& MambaNames() {
  static const NameMap names = MixerNames(SetSelectiveNames);
  return names;
}

NameMap JambaNames(bool stacked) {
  NameMap jamba = LlamaNames();
  jamba.final_norm = "final_layernorm.weight";
  LayerNames& layer = jamba.layer;
  SetSelectiveNames("layers.{}.mamba", &layer);
  layer.recur_steps_norm = "layers.{}.mamba.dt_layernorm.weight";
  layer.recur_key_norm = "layers.{}.mamba.b_layernorm.weight";
  layer.recur_query_norm = "layers.{}.mamba.c_layernorm.weight";
  layer.mlp_norm = "layers.{}.pre_ff_layernorm.weight";
  layer.gate = "layers.{}.feed_forward.gate_proj.weight";
  layer.up = "layers.{}.feed_forward.up_proj.weight";
  layer.down = "layers.{}.feed_forward.down_proj.weight";
  layer.router = "layers.{}.feed_forward.router.weight";
  if (stacked) {
    layer.expert_gate_up = "layers.{}.feed_forward.experts.gate_up_proj";
    layer.expert_down = "layers.{}.feed_forward.experts.down_proj";
  } else {
    layer.expert_gate = "layers.{}.feed_forward.experts.{e}.gate_proj.weight";
    layer.expert_up = "layers.{}.feed_forward.experts.{e}.up_proj.weight";
    layer.expert_down = "layers.{}.feed_forward.experts.{e}.down_proj.weight";
  }
  return jamba;
}

Family SelectiveRow(Family row, std::string_view name,
                    std::span<const std::string_view> architectures,
                    std::span<const std::string_view> gguf) {
  row.name = row.model_type = name;
  row.architectures = architectures;
  row.gguf_architectures = gguf;
  row.gguf_rope_layout = RopeLayout::kHalf;
  row.qkv_bias = row.out_bias = row.mlp_bias = Flag::Never();
  row.gguf_renormalise = false;
  return row;
}

Family Mamba(const Family& llama) {
  Family mamba = SelectiveRow(llama, "mamba", kMambaArchitectures, kMambaGguf);
  mamba.attends = false;
  mamba.prefix = "backbone.";
  mamba.keys.norm_eps = "layer_norm_epsilon";
  mamba.norm_eps = 1e-5;
  mamba.tied_embeddings = true;
  mamba.max_context = kNoLimit;
  mamba.names = &MambaNames();
  mamba.refine = RefineMamba;
  mamba.refine_gguf = RefineGgufMamba;
  return mamba;
}

Family FalconMamba(const Family& llama) {
  Family falcon = Mamba(llama);
  falcon.name = falcon.model_type = "falcon_mamba";
  falcon.architectures = kFalconMambaArchitectures;
  falcon.gguf_architectures = {};
  falcon.refine = RefineFalconMamba;
  falcon.refine_gguf = nullptr;
  return falcon;
}

Family Jamba(const Family& llama) {
  static const NameMap apart = JambaNames(/*stacked=*/false);
  static const NameMap stacked = JambaNames(/*stacked=*/true);
  Family jamba = SelectiveRow(llama, "jamba", kJambaArchitectures, kJambaGguf);
  jamba.n_kv_heads = 8;
  jamba.max_context = 262144;
  jamba.names = &apart;
  jamba.stacked_names = &stacked;
  jamba.refine = RefineJamba;
  jamba.refine_gguf = RefineGgufJamba;
  return jamba;
}

}  // namespace

std::vector<Family> SelectiveRows(const Family& llama) {
  return {Mamba(llama), FalconMamba(llama), Jamba(llama)};
}

}  // namespace heddle::engine
