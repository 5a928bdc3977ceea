#include "engine/family/gemma3n_rows.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/layer_inputs.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kGemma3nArchitectures[] = {"Gemma3nForCausalLM",
                                                      "Gemma3nForConditionalGeneration"};
constexpr std::string_view kGemma3nGguf[] = {"gemma3n"};

// Gemma3nTextConfig's, and llama.cpp's constants.
constexpr int32_t kLayerInputVocab = 262144;
constexpr int64_t kSharedLayers = 15;
constexpr int32_t kLaurelRank = 64;
constexpr int32_t kStreams = 4;
constexpr double kLogitSoftcap = 30.0;
constexpr double kSparsity = 0.95;
constexpr int32_t kSparseLayers = 10;

const NameMap& Gemma3nNames() {
  static const NameMap names = [] {
    NameMap gemma = GemmaNames();
    NameLayerInputs(&gemma);
    gemma.altup_in = "altup_projections.{}.weight";
    gemma.altup_out = "altup_unembed_projections.{}.weight";
    LayerNames& layer = gemma.layer;
    layer.altup_router_norm = "layers.{}.altup.router_norm.weight";
    layer.altup_router = "layers.{}.altup.modality_router.weight";
    layer.altup_predict = "layers.{}.altup.prediction_coefs.weight";
    layer.altup_correct = "layers.{}.altup.correction_coefs.weight";
    layer.altup_scale = "layers.{}.altup.correct_output_scale";
    layer.laurel_in = "layers.{}.laurel.linear_left.weight";
    layer.laurel_out = "layers.{}.laurel.linear_right.weight";
    layer.laurel_norm = "layers.{}.laurel.post_laurel_norm.weight";
    return gemma;
  }();
  return names;
}

void NameGemma3nGguf(NameMap* names) {
  NameGgufLayerInputs(names);
  names->altup_in = "altup_proj.weight";
  names->altup_out = "altup_unembd_proj.weight";
  LayerNames& layer = names->layer;
  layer.altup_router_norm = "blk.{}.altup_router_norm.weight";
  layer.altup_router = "blk.{}.altup_router.weight";
  layer.altup_predict = "blk.{}.altup_predict_coef.weight";
  layer.altup_correct = "blk.{}.altup_correct_coef.weight";
  layer.altup_scale = "blk.{}.altup_correct_scale.weight";
  layer.laurel_in = "blk.{}.laurel_l.weight";
  layer.laurel_out = "blk.{}.laurel_r.weight";
  layer.laurel_norm = "blk.{}.laurel_post_norm.weight";
}

// Sets what all files have in common.
void ApplyToGemma3n(ModelSpec* spec) {
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
  for (LayerSpec& layer : spec->layers) {
    layer.attention.scale = 1.0f;
    layer.attention.value_norm = true;
  }
}

absl::Status SetStreams(const ConfigSource& source, std::string_view count_key,
                        std::string_view active_key, bool scaled, ModelSpec* spec) {
  AltUpSpec& altup = spec->altup;
  HEDDLE_ASSIGN_OR_RETURN(altup.count, source.DimOr(count_key, kernels::kMaxStreams, kStreams));
  int64_t active = 0;
  if (source.Has(active_key)) {
    HEDDLE_ASSIGN_OR_RETURN(active, source.Int(active_key));
  }
  if (active < 0 || active >= altup.count) {
    return source.Error(active_key, base::StrCat(active),
                        base::StrCat("from 0 to ", altup.count - 1));
  }
  altup.active = static_cast<int32_t>(active);
  altup.scaled = scaled;
  return absl::OkStatus();
}

absl::Status ReadWidths(const JsonSource& config, ModelSpec* spec) {
  constexpr std::string_view kInter = "intermediate_size";
  const json* value = config.Find(kInter);
  if (value == nullptr || !value->is_array()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int32_t> widths, ReadDims(config, kInter));
  if (widths.size() != spec->layers.size()) {
    return config.Error(kInter, base::StrCat("a list of ", widths.size()),
                        base::StrCat("one of ", spec->layers.size(), ", one per layer"));
  }
  for (size_t i = 0; i < widths.size(); ++i) spec->layers[i].mlp.inter = widths[i];
  return absl::OkStatus();
}

void SetSparseLayers(int32_t count, ModelSpec* spec) {
  for (int32_t i = 0; i < count; ++i) {
    spec->layers[static_cast<size_t>(i)].mlp.gate_deviations =
        static_cast<float>(NormalQuantile(kSparsity));
  }
}

// The share of gates that are zero, by layer.
absl::Status ReadSparsity(const JsonSource& config, ModelSpec* spec) {
  constexpr std::string_view kKey = "activation_sparsity_pattern";
  const json* list = config.Find(kKey);
  if (list == nullptr) {
    SetSparseLayers(spec->n_layers() > kSparseLayers ? kSparseLayers : 0, spec);
    return absl::OkStatus();
  }
  const bool fits = list->is_array() && list->size() == spec->layers.size();
  for (size_t i = 0; fits && i < list->size(); ++i) {
    const json& value = (*list)[i];
    const double share = value.is_number() ? value.get<double>() : -1.0;
    if (share == 0.0) continue;
    if (!(share > 0.0 && share < 1.0)) {
      return config.Error(kKey, JsonSource::Show(value), "numbers from 0 to below 1");
    }
    spec->layers[i].mlp.gate_deviations = static_cast<float>(NormalQuantile(share));
  }
  if (fits) return absl::OkStatus();
  return config.Error(kKey, JsonSource::Show(*list),
                      base::StrCat("a list of ", spec->layers.size(), " numbers, one per layer"));
}

absl::Status RefineGemma3n(const JsonSource& config, ModelSpec* spec, NameMap*) {
  // They say how the model was trained; scores are not scaled.
  for (const std::string_view key :
       {"altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"}) {
    static_cast<void>(config.Has(key));
  }
  ApplyToGemma3n(spec);
  HEDDLE_RETURN_IF_ERROR(ReadWidths(config, spec));
  HEDDLE_RETURN_IF_ERROR(ReadSparsity(config, spec));
  if (!config.IsNull("final_logit_softcapping")) {
    HEDDLE_ASSIGN_OR_RETURN(const double softcap, config.PositiveOr("final_logit_softcapping",
                                                                    kMaxFactor, kLogitSoftcap));
    spec->logit_softcap = static_cast<float>(softcap);
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool scaled, config.BoolOr("altup_correct_scale", true));
  HEDDLE_RETURN_IF_ERROR(SetStreams(config, "altup_num_inputs", "altup_active_idx", scaled, spec));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t rank, config.DimOr("laurel_rank", kMaxInter, kLaurelRank));
  for (LayerSpec& layer : spec->layers) layer.laurel_rank = rank;
  HEDDLE_RETURN_IF_ERROR(ReadLayerInputs(config, kLayerInputVocab, spec));
  return ReadSharedKeys(config, kSharedLayers, spec);
}

// The deviations themselves, by layer; minus infinity where no gate is cut.
absl::Status ReadGgufSparsity(const GgufSource& source, ModelSpec* spec) {
  constexpr std::string_view kKey = "activation_sparsity_scale";
  if (!source.Has(kKey)) {
    SetSparseLayers(std::min(spec->n_layers(), kSparseLayers), spec);
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> all, source.Floats(kKey));
  if (all.size() != spec->layers.size()) {
    return source.Error(kKey, base::StrCat("an array of ", all.size()),
                        base::StrCat("one of ", spec->layers.size(), ", one per layer"));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::isinf(all[i]) && all[i] < 0) continue;
    if (!std::isfinite(all[i])) {
      return source.Error(kKey, base::StrCat(all[i]), "finite numbers or minus infinity");
    }
    spec->layers[i].mlp.gate_deviations = all[i];
  }
  return absl::OkStatus();
}

absl::Status RefineGgufGemma3n(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names) {
  constexpr std::string_view kInter = "feed_forward_length";
  NameGemma3nGguf(names);
  ApplyToGemma3n(spec);
  HEDDLE_ASSIGN_OR_RETURN(const double softcap,
                          source.PositiveOr("final_logit_softcapping", kMaxFactor, kLogitSoftcap));
  spec->logit_softcap = static_cast<float>(softcap);
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> widths,
                          NumbersOfLayers(source, kInter, spec->layers.size()));
  const CheckpointTensor* laurel = find("blk.0.laurel_l.weight");
  for (size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] < 1) return source.Error(kInter, "0", "at least 1 in each layer");
    LayerSpec& layer = spec->layers[i];
    layer.mlp.inter = static_cast<int32_t>(widths[i]);
    layer.laurel_rank = kLaurelRank;
    if (laurel != nullptr && laurel->shape.size() == 2 && laurel->shape[0] <= kMaxInter) {
      layer.laurel_rank = static_cast<int32_t>(laurel->shape[0]);
    }
  }
  HEDDLE_RETURN_IF_ERROR(ReadGgufSparsity(source, spec));
  HEDDLE_RETURN_IF_ERROR(
      SetStreams(source, "altup.num_inputs", "altup.active_idx", /*scaled=*/true, spec));
  HEDDLE_RETURN_IF_ERROR(ReadGgufLayerInputs(source, find, spec));
  return ReadGgufSharedKeys(source, spec);
}

}  // namespace

double NormalQuantile(double p) {
  double low = -40.0;
  double high = 40.0;
  for (int step = 0; step < 80; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<Family> Gemma3nRows(const Family& gemma3) {
  Family gemma3n = gemma3;
  gemma3n.name = "gemma3n";
  gemma3n.model_type = "gemma3n_text";
  gemma3n.architectures = kGemma3nArchitectures;
  gemma3n.gguf_architectures = kGemma3nGguf;
  gemma3n.norm_weight_offset = 0.0f;
  gemma3n.n_kv_heads = 2;
  gemma3n.sliding_window = 512;
  gemma3n.window_pattern = 5;
  gemma3n.vocab = 262400;
  gemma3n.max_context = 32768;
  gemma3n.inter_lists = true;
  gemma3n.names = &Gemma3nNames();
  gemma3n.refine = RefineGemma3n;
  gemma3n.refine_gguf = RefineGgufGemma3n;
  return {gemma3n};
}

}  // namespace heddle::engine
