#include "engine/family/rwkv_rows.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/mamba_refine.h"
#include "engine/family/recurrent_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kArchitectures[] = {"RWKV7ForCausalLM", "Rwkv7ForCausalLM"};
constexpr std::string_view kGguf[] = {"rwkv7"};
constexpr std::string_view kQwenGguf[] = {"arwkv7"};

constexpr int32_t kUsualHead = 64;

// Names within a layer's time mix.
struct PartName {
  std::string WkvNames::*name;
  std::string_view folder;  // in fla-hub's folders; empty: not there
  std::string_view gguf;    // empty: not there
};

constexpr PartName kParts[] = {
    {&WkvNames::shift, "", "lerp_fused.weight"},
    {&WkvNames::shift_r, "x_r", ""},
    {&WkvNames::shift_w, "x_w", ""},
    {&WkvNames::shift_k, "x_k", ""},
    {&WkvNames::shift_v, "x_v", ""},
    {&WkvNames::shift_a, "x_a", ""},
    {&WkvNames::shift_g, "x_g", ""},
    {&WkvNames::r, "r_proj.weight", "receptance.weight"},
    {&WkvNames::k, "k_proj.weight", "key.weight"},
    {&WkvNames::v, "v_proj.weight", "value.weight"},
    {&WkvNames::o, "o_proj.weight", "output.weight"},
    {&WkvNames::w1, "w_lora.lora.0.weight", "w1.weight"},
    {&WkvNames::w2, "w_lora.lora.2.weight", "w2.weight"},
    {&WkvNames::w0, "w_lora.lora.2.bias", "w0.weight"},
    {&WkvNames::a1, "a_lora.lora.0.weight", "a1.weight"},
    {&WkvNames::a2, "a_lora.lora.2.weight", "a2.weight"},
    {&WkvNames::a0, "a_lora.lora.2.bias", "a0.weight"},
    {&WkvNames::v1, "v_lora.lora.0.weight", "v1.weight"},
    {&WkvNames::v2, "v_lora.lora.2.weight", "v2.weight"},
    {&WkvNames::v0, "v_lora.lora.2.bias", "v0.weight"},
    {&WkvNames::g1, "g_lora.lora.0.weight", "g1.weight"},
    {&WkvNames::g2, "g_lora.lora.2.weight", "g2.weight"},
    {&WkvNames::key_scale, "k_k", "k_k.weight"},
    {&WkvNames::key_mix, "k_a", "k_a.weight"},
    {&WkvNames::bonus, "r_k", "r_k.weight"},
    {&WkvNames::norm, "g_norm.weight", "ln.weight"},
    {&WkvNames::norm_bias, "g_norm.bias", "ln.bias"},
};

// Sets the names of one format: each is `module` and the part's name; absent ones are cleared.
void SetParts(std::string_view PartName::*format, std::string_view module, WkvNames* names) {
  for (const PartName& part : kParts) {
    const std::string_view name = part.*format;
    names->*part.name = name.empty() ? "" : base::StrCat(module, name);
  }
}

// The names of fla-hub's folders.
NameMap FolderNames() {
  NameMap names;
  names.embed = "embeddings.weight";
  names.embed_norm = "layers.0.pre_norm.weight";
  names.embed_norm_bias = "layers.0.pre_norm.bias";
  names.final_norm = "norm.weight";
  names.final_norm_bias = "norm.bias";
  names.lm_head = "lm_head.weight";
  LayerNames& layer = names.layer;
  layer.attn_norm = "layers.{}.attn_norm.weight";
  layer.attn_norm_bias = "layers.{}.attn_norm.bias";
  layer.mlp_norm = "layers.{}.ffn_norm.weight";
  layer.mlp_norm_bias = "layers.{}.ffn_norm.bias";
  layer.up = "layers.{}.ffn.key.weight";
  layer.down = "layers.{}.ffn.value.weight";
  SetParts(&PartName::folder, "layers.{}.attn.", &layer.wkv);
  layer.wkv.mlp_shift = "layers.{}.ffn.x_k";
  return names;
}

void SetGgufNames(NameMap* names) {
  names->embed_norm = "token_embd_norm.weight";
  names->embed_norm_bias = "token_embd_norm.bias";
  LayerNames& layer = names->layer;
  layer.mlp_norm = "blk.{}.attn_norm_2.weight";
  layer.mlp_norm_bias = "blk.{}.attn_norm_2.bias";
  layer.up = "blk.{}.channel_mix_key.weight";
  layer.down = "blk.{}.channel_mix_value.weight";
  SetParts(&PartName::gguf, "blk.{}.time_mix_", &layer.wkv);
  layer.wkv.mlp_shift = "blk.{}.channel_mix_lerp_k.weight";
}

absl::Status CheckHead(const ConfigSource& source, std::string_view key, int32_t head_dim,
                       const ModelSpec& spec) {
  if (spec.hidden % head_dim != 0) {
    return source.Error(key, base::StrCat(head_dim),
                        base::StrCat("a divisor of the width (", spec.hidden, ")"));
  }
  const int64_t floats = kernels::WkvState(spec.hidden / head_dim, head_dim, spec.hidden).floats;
  if (head_dim <= kMaxStateDim && floats <= kMaxSnapshotFloats) return absl::OkStatus();
  return source.Unsupported(
      key, base::StrCat(head_dim),
      base::StrCat("supported are up to ", kMaxStateDim, ", and ", kMaxSnapshotFloats,
                   " numbers in a layer's state, which has ", floats));
}

void Apply(const WkvSpec& wkv, int32_t inter, ModelSpec* spec) {
  spec->max_context = kNoLimit;
  for (LayerSpec& layer : spec->layers) {
    layer.attention = {};
    layer.attention.wkv = wkv;
    layer.mlp = {.inter = inter, .activation = Activation::kRelu2, .gated = false};
    layer.mlp.token_shift = true;
  }
  spec->layers.front().attention.wkv.value_rank = 0;
}

// The width of a low-rank product, which follows from the model's where config.json has none.
absl::StatusOr<int32_t> ReadRank(const JsonSource& config, std::string_view key, double factor,
                                 int32_t hidden) {
  const double wanted = factor * std::sqrt(static_cast<double>(hidden)) / 32.0;
  const auto absent = static_cast<int32_t>(std::max(32.0, std::nearbyint(wanted) * 32.0));
  return config.DimOr(key, kMaxHidden, absent);
}

absl::StatusOr<int32_t> ReadInter(const JsonSource& config, int32_t hidden) {
  HEDDLE_ASSIGN_OR_RETURN(const double ratio, config.PositiveOr("hidden_ratio", kMaxFactor, 4.0));
  const int64_t absent = (static_cast<int64_t>(hidden * ratio) + 31) / 32 * 32;
  return config.DimOr("intermediate_size", kMaxInter,
                      static_cast<int32_t>(std::clamp<int64_t>(absent, 1, kMaxInter)));
}

// Refuses layers of attention between those of time mixes, and values of another width.
absl::Status CheckPlain(const JsonSource& config, const ModelSpec& spec) {
  constexpr std::string_view kAttention = "attn";
  if (config.Has(kAttention)) {
    return config.Unsupported(kAttention, JsonSource::Show(*config.Find(kAttention)),
                              "expected null: layers of attention are not supported");
  }
  constexpr std::string_view kValues = "value_dim";
  const nlohmann::json* values = config.Find(kValues);
  for (const nlohmann::json& value : values == nullptr ? nlohmann::json::array() : *values) {
    if (value == spec.hidden) continue;
    return config.Unsupported(kValues, JsonSource::Show(value),
                              base::StrCat("expected the width (", spec.hidden, ")"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool bias, config.BoolOr("norm_bias", true));
  if (!bias) return config.Unsupported("norm_bias", "false", "expected true");
  return absl::OkStatus();
}

absl::Status RefineRwkv7(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(CheckPlain(config, *spec));
  for (const std::string_view key : {"attn_mode", "fuse_norm", "fuse_cross_entropy", "use_l2warp",
                                     "fuse_linear_cross_entropy"}) {
    static_cast<void>(config.Has(key));  // how to compute the same
  }
  constexpr std::string_view kHead = "head_dim";
  WkvSpec wkv;
  if (config.Has(kHead)) {
    HEDDLE_ASSIGN_OR_RETURN(wkv.head_dim, config.Dim(kHead, kMaxHeadDim));
    static_cast<void>(config.Has("num_heads"));
  } else if (config.Has("num_heads")) {
    HEDDLE_ASSIGN_OR_RETURN(const int32_t heads, config.Dim("num_heads", kMaxHeads));
    HEDDLE_RETURN_IF_ERROR(CheckHead(config, "num_heads", heads, *spec));
    wkv.head_dim = spec->hidden / heads;
  } else {
    wkv.head_dim = kUsualHead;
  }
  HEDDLE_RETURN_IF_ERROR(CheckHead(config, kHead, wkv.head_dim, *spec));
  wkv.n_heads = spec->hidden / wkv.head_dim;
  wkv.norm_eps = static_cast<float>(wkv.head_dim) * spec->norm_eps;
  const double factor = wkv.head_dim / static_cast<double>(kUsualHead);
  const int32_t hidden = spec->hidden;
  HEDDLE_ASSIGN_OR_RETURN(wkv.decay_rank,
                          ReadRank(config, "decay_low_rank_dim", 2.5 * factor, hidden));
  HEDDLE_ASSIGN_OR_RETURN(wkv.rate_rank, ReadRank(config, "a_low_rank_dim", 2.5 * factor, hidden));
  HEDDLE_ASSIGN_OR_RETURN(wkv.value_rank, ReadRank(config, "v_low_rank_dim", 1.7 * factor, hidden));
  HEDDLE_ASSIGN_OR_RETURN(wkv.gate_rank, ReadRank(config, "gate_low_rank_dim", 5.0, hidden));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t inter, ReadInter(config, hidden));
  HEDDLE_ASSIGN_OR_RETURN(spec->embedding_norm, config.BoolOr("norm_first", true));
  const Activation activation = spec->layers.front().mlp.activation;
  if (activation != Activation::kRelu2) {
    return config.Unsupported("hidden_act", JsonSource::Show(*config.Find("hidden_act")),
                              "expected \"sqrelu\"");
  }
  Apply(wkv, inter, spec);
  return absl::OkStatus();
}

// `shifts`: the blocks of a layer whose inputs are mixed with those of the position before.
absl::StatusOr<WkvSpec> ReadGgufMix(const GgufSource& source, int32_t shifts,
                                    const ModelSpec& spec) {
  constexpr std::string_view kShifts = "token_shift_count";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t found, source.DimOr(kShifts, kMaxLayers, shifts));
  if (found != shifts) {
    return source.Unsupported(kShifts, base::StrCat(found), base::StrCat("expected ", shifts));
  }
  WkvSpec wkv;
  HEDDLE_ASSIGN_OR_RETURN(wkv.head_dim, source.Dim("wkv.head_size", kMaxHeadDim));
  HEDDLE_RETURN_IF_ERROR(CheckHead(source, "wkv.head_size", wkv.head_dim, spec));
  wkv.n_heads = spec.hidden / wkv.head_dim;
  wkv.norm_eps = 64e-5f;  // whatever the head's size, as llama.cpp has it
  HEDDLE_ASSIGN_OR_RETURN(wkv.decay_rank, source.Dim("attention.decay_lora_rank", kMaxHidden));
  HEDDLE_ASSIGN_OR_RETURN(wkv.rate_rank, source.Dim("attention.iclr_lora_rank", kMaxHidden));
  HEDDLE_ASSIGN_OR_RETURN(wkv.value_rank,
                          source.Dim("attention.value_residual_mix_lora_rank", kMaxHidden));
  static_cast<void>(source.Has("attention.head_count"));  // zero
  return wkv;
}

absl::Status RefineGgufRwkv7(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                             NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(WkvSpec wkv, ReadGgufMix(source, 2, *spec));
  HEDDLE_ASSIGN_OR_RETURN(wkv.gate_rank, source.Dim("attention.gate_lora_rank", kMaxHidden));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t inter, source.Dim("feed_forward_length", kMaxInter));
  spec->embedding_norm = find("token_embd_norm.weight") != nullptr;
  SetGgufNames(names);
  Apply(wkv, inter, spec);
  return absl::OkStatus();
}

absl::Status RefuseFolder(const JsonSource& config, ModelSpec*, NameMap*) {
  return config.Unsupported("model_type", "\"arwkv7\"", "only its GGUF files are read");
}

// Time mixes between Qwen2.5's MLPs, whose inputs are not mixed. Heads may have no norms, and the
// mixes no gates: then there are no tensors of them, or a rank of 0.
absl::Status RefineGgufQwenRwkv7(const GgufSource& source, const TensorFinder& find,
                                 ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kGate = "attention.gate_lora_rank";
  HEDDLE_ASSIGN_OR_RETURN(WkvSpec wkv, ReadGgufMix(source, 1, *spec));
  if (source.Has(kGate)) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t rank, source.Int(kGate));
    if (rank < 0 || rank > kMaxHidden) {
      return source.Error(kGate, base::StrCat(rank), base::StrCat("from 0 to ", kMaxHidden));
    }
    wkv.gate_rank = static_cast<int32_t>(rank);
  }
  wkv.has_norm = find("blk.0.time_mix_ln.weight") != nullptr;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t inter, source.Dim("feed_forward_length", kMaxInter));
  WkvNames& mix = names->layer.wkv;
  SetParts(&PartName::gguf, "blk.{}.time_mix_", &mix);
  if (wkv.gate_rank == 0) mix.g1 = mix.g2 = "";
  if (!wkv.has_norm) mix.norm = mix.norm_bias = "";
  Apply(wkv, inter, spec);
  for (LayerSpec& layer : spec->layers) {
    layer.mlp = {.inter = inter, .activation = Activation::kSilu, .gated = true};
  }
  return absl::OkStatus();
}

}  // namespace

Family RwkvRow(const Family& llama) {
  static const NameMap names = FolderNames();
  Family rwkv = llama;
  rwkv.name = rwkv.model_type = "rwkv7";
  rwkv.architectures = kArchitectures;
  rwkv.gguf_architectures = kGguf;
  rwkv.keys.norm_eps = "norm_eps";
  rwkv.norm = NormKind::kLayer;
  rwkv.norm_eps = 1e-5;
  rwkv.activation = "sqrelu";
  rwkv.gated = false;
  rwkv.attends = false;
  rwkv.max_context = kNoLimit;
  rwkv.gguf_rope_layout = RopeLayout::kHalf;
  rwkv.qkv_bias = rwkv.out_bias = rwkv.mlp_bias = Flag::Never();
  rwkv.names = &names;
  rwkv.refine = RefineRwkv7;
  rwkv.refine_gguf = RefineGgufRwkv7;
  return rwkv;
}

Family QwenRwkvRow(const Family& llama) {
  Family qwen = RwkvRow(llama);
  qwen.name = qwen.model_type = "arwkv7";
  qwen.architectures = {};
  qwen.gguf_architectures = kQwenGguf;
  qwen.norm = NormKind::kRms;
  qwen.norm_eps = 1e-6;
  qwen.activation = "silu";
  qwen.gated = true;
  qwen.refine = RefuseFolder;
  qwen.refine_gguf = RefineGgufQwenRwkv7;
  return qwen;
}

}  // namespace heddle::engine
