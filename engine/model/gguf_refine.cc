#include "engine/model/gguf_refine.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace heddle::engine {
namespace {

// A cap on logits; absent: none.
absl::StatusOr<float> ReadSoftcap(const GgufSource& source, std::string_view key) {
  HEDDLE_ASSIGN_OR_RETURN(double softcap, source.PositiveOr(key, kMaxFactor, 0.0));
  return static_cast<float>(softcap);
}

}  // namespace

// The scale of scores is not in the file: of the published models only the two of 27B have another
// than 1 / sqrt(head_dim), which their numbers of layers give away.
absl::Status RefineGgufGemma(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                             NameMap*) {
  constexpr int32_t kGemma2Layers27b = 46;
  constexpr int32_t kGemma3Layers27b = 62;
  HEDDLE_ASSIGN_OR_RETURN(float softcap, ReadSoftcap(source, "attn_logit_softcapping"));
  HEDDLE_ASSIGN_OR_RETURN(spec->logit_softcap, ReadSoftcap(source, "final_logit_softcapping"));
  const bool by_width =
      spec->n_layers() == (spec->family == "gemma2" ? kGemma2Layers27b : kGemma3Layers27b);
  for (LayerSpec& layer : spec->layers) {
    AttentionSpec& attention = layer.attention;
    attention.softcap = softcap;
    if (by_width) {
      attention.scale = 1.0f / std::sqrt(static_cast<float>(spec->hidden / attention.n_heads));
    }
  }
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
  return absl::OkStatus();
}

// See RefineGranite.
absl::Status RefineGgufGranite(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                               NameMap*) {
  GraniteScales scales;
  HEDDLE_ASSIGN_OR_RETURN(scales.embedding, source.PositiveOr("embedding_scale", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(scales.residual, source.PositiveOr("residual_scale", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(scales.attention,
                          source.PositiveOr("attention.scale", kMaxFactor,
                                            double{spec->layers.front().attention.scale}));
  HEDDLE_ASSIGN_OR_RETURN(scales.logits, source.PositiveOr("logit_scale", kMaxFactor, 1.0));
  ApplyGraniteScales(scales, spec);
  return absl::OkStatus();
}

// Each fourth layer has no RoPE; no key says so.
absl::Status RefineGgufSmolLm3(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  for (size_t i = 3; i < spec->layers.size(); i += 4) spec->layers[i].attention.rope = RopeSpec{};
  return absl::OkStatus();
}

absl::Status RefineGgufGptNeox(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                               NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool parallel, source.BoolOr("use_parallel_residual", true));
  for (LayerSpec& layer : spec->layers) layer.parallel_residual = parallel;
  return absl::OkStatus();
}

// Its norm before the MLP has the name that others give to one after attention. The bounds of
// YaRN's ramp are not rounded in this model.
absl::Status RefineGgufGptOss(const GgufSource&, const TensorFinder&, ModelSpec* spec,
                              NameMap* names) {
  names->layer.mlp_norm = "blk.{}.post_attention_norm.weight";
  for (LayerSpec& layer : spec->layers) layer.attention.rope.yarn_truncate = false;
  ApplyGptOss(spec);
  return absl::OkStatus();
}

// One norm for both blocks; or, where there is a second one, that is attention's.
absl::Status RefineGgufFalcon(const GgufSource&, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  for (LayerSpec& layer : spec->layers) layer.parallel_residual = true;
  LayerNames& layer = names->layer;
  layer.mlp_norm = layer.attn_norm;
  layer.mlp_norm_bias = layer.attn_norm_bias;
  if (find("blk.0.attn_norm_2.weight") != nullptr) {
    layer.attn_norm = "blk.{}.attn_norm_2.weight";
    layer.attn_norm_bias = "blk.{}.attn_norm_2.bias";
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
