#include "engine/family/gguf_refine.h"

#include <algorithm>
#include <cmath>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/mamba_refine.h"

namespace heddle::engine {
namespace {

// Reads a cap on logits; absent means none.
absl::StatusOr<float> ReadSoftcap(const GgufSource& source, std::string_view key) {
  HEDDLE_ASSIGN_OR_RETURN(double softcap, source.PositiveOr(key, kMaxFactor, 0.0));
  return static_cast<float>(softcap);
}

// Ministral 3 and Mistral Large 3 sharpen scores with the logarithm of the position beyond a
// length.
absl::Status ReadTemperature(const GgufSource& source, ModelSpec* spec) {
  constexpr std::string_view kScale = "attention.temperature_scale";
  if (!source.Has(kScale)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(double scale, source.Float(kScale));
  if (scale == 0.0) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(
      const int32_t original,
      source.DimOr("rope.scaling.original_context_length", kMaxContext, spec->max_context));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t length,
                          source.DimOr("attention.temperature_length", kMaxContext, original));
  SharpenBeyond(scale, length, spec);
  return absl::OkStatus();
}

}  // namespace

absl::Status RefineGgufMistral3(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                                NameMap*) {
  return ReadTemperature(source, spec);
}

absl::Status RefineGgufApertus(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                               NameMap*) {
  // These keys have no architecture before them.
  const GgufFile& gguf = source.gguf();
  const auto values = [&](std::string_view key) -> absl::StatusOr<std::vector<float>> {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> found, gguf.Floats(key));
    if (found.size() == spec->layers.size()) return found;
    return absl::InvalidArgumentError(
        base::StrCat(gguf.name(), ": ", base::Quote(key), " is an array of ", found.size(),
                     ", expected one of ", spec->n_layers(), ", one per layer"));
  };
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> positive, values("xielu.alpha_p"));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> negative, values("xielu.alpha_n"));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> beta, values("xielu.beta"));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> eps, values("xielu.eps"));
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    MlpSpec& mlp = spec->layers[i].mlp;
    mlp.activation = Activation::kNone;
    mlp.xielu = {.is_here = true,
                 .positive = positive[i],
                 .negative = negative[i],
                 .beta = beta[i],
                 .eps = eps[i]};
  }
  return absl::OkStatus();
}

// The file does not give the scale of scores. Of the published models only the two of 27B use
// another than 1 / sqrt(head_dim), and their numbers of layers identify them.
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
    attention.softcap = spec->family == "gemma2" ? softcap : 0.0f;
    if (by_width) {
      const int32_t width_per_head = spec->hidden / attention.n_heads;
      attention.scale = 1.0f / std::sqrt(static_cast<float>(width_per_head));
    }
  }
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
  return absl::OkStatus();
}

// The scales are explained at RefineGranite.
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

absl::Status RefineGgufGraniteHybrid(const GgufSource& source, const TensorFinder& find,
                                     ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGgufGranite(source, find, spec, names));
  return RefineGgufMambaLayers(source, find, spec, names);
}

// The converter reorders q and k of the variants that read images, which have sections of RoPE, for
// pairs of halves. For text all sections are alike.
absl::Status RefineGgufGlm4(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                            NameMap*) {
  if (!source.Has("rope.dimension_sections")) return absl::OkStatus();
  for (LayerSpec& layer : spec->layers) layer.attention.rope.layout = RopeLayout::kHalf;
  return absl::OkStatus();
}

// Every fourth layer has no RoPE; no key says so.
absl::Status RefineGgufSmolLm3(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  for (size_t i = 3; i < spec->layers.size(); i += 4) spec->layers[i].attention.rope = RopeSpec{};
  return absl::OkStatus();
}

absl::Status RefineGgufGptNeox(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                               NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool parallel, source.BoolOr("use_parallel_residual", true));
  for (LayerSpec& layer : spec->layers) {
    layer.wiring = parallel ? Wiring::kParallel : Wiring::kSequential;
  }
  return absl::OkStatus();
}

// The norm before this model's MLP has the name that others give to one after attention. The bounds
// of its YaRN ramp are not rounded.
absl::Status RefineGgufGptOss(const GgufSource&, const TensorFinder&, ModelSpec* spec,
                              NameMap* names) {
  names->layer.mlp_norm = "blk.{}.post_attention_norm.weight";
  for (LayerSpec& layer : spec->layers) layer.attention.rope.yarn_truncate = false;
  ApplyGptOss(spec);
  return absl::OkStatus();
}

// Newer files have separate keys for the lengths of keys and values before absorption; there
// attention.key_length is that of the cache's row.
absl::Status RefineGgufDeepseek(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                                NameMap*) {
  MlaSpec mla;
  HEDDLE_ASSIGN_OR_RETURN(mla.kv_rank, source.Dim("attention.kv_lora_rank", kMaxHeadDim));
  HEDDLE_ASSIGN_OR_RETURN(mla.q_rank, source.DimOr("attention.q_lora_rank", kMaxHidden, 0));
  HEDDLE_ASSIGN_OR_RETURN(mla.rope_dim, source.Dim("rope.dimension_count", kMaxHeadDim));
  const bool absorbed = source.Has("attention.key_length_mla");
  const std::string_view key = absorbed ? "attention.key_length_mla" : "attention.key_length";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t key_dim, source.Dim(key, kMaxHeadDim));
  HEDDLE_ASSIGN_OR_RETURN(
      mla.v_dim,
      source.Dim(absorbed ? "attention.value_length_mla" : "attention.value_length", kMaxHeadDim));
  if (key_dim <= mla.rope_dim) {
    return source.Error(key, base::StrCat(key_dim),
                        base::StrCat("more than \"rope.dimension_count\" (", mla.rope_dim, ")"));
  }
  mla.nope_dim = key_dim - mla.rope_dim;
  const int64_t n_heads = spec->layers.front().attention.n_heads;
  if (n_heads * (mla.rope_dim + mla.kv_rank) > kMaxInter) {
    return source.Error("attention.head_count", base::StrCat(n_heads),
                        base::StrCat("at most ", kMaxInter / (mla.rope_dim + mla.kv_rank)));
  }
  HEDDLE_ASSIGN_OR_RETURN(double log_multiplier,
                          source.PositiveOr("rope.scaling.yarn_log_multiplier", kMaxFactor, 0.0));
  HEDDLE_ASSIGN_OR_RETURN(double factor, source.PositiveOr("rope.scaling.factor", kMaxFactor, 1.0));
  const double magnitude = 1.0 + log_multiplier * std::log(std::max(factor, 1.0));
  ApplyLatentAttention(mla, magnitude * magnitude, spec);
  return ReadTemperature(source, spec);
}

// Files of GLM-5.2 may lack the list of layers with an indexer of their own: those have one whose
// tensors are there.
absl::StatusOr<std::vector<bool>> ReadIndexerTypes(const GgufSource& source,
                                                   const TensorFinder& find,
                                                   const ModelSpec& spec) {
  constexpr std::string_view kTypes = "attention.indexer.types";
  const auto n_layers = static_cast<size_t>(spec.n_layers());
  std::vector<bool> own(n_layers, true);
  if (!source.Has(kTypes)) {
    // The first needs one: where it has none, its tensors are missing.
    for (size_t i = 1; i < n_layers; ++i) {
      own[i] = find(base::StrCat("blk.", i, ".indexer.attn_q_b.weight")) != nullptr;
    }
    return own;
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> types, source.Ints(kTypes));
  if (types.size() < n_layers || types.front() == 0) {
    return source.Error(
        kTypes, base::StrCat("an array of ", types.size()),
        base::StrCat("one flag for each of ", n_layers, " layers, of which the first is true"));
  }
  for (size_t i = 0; i < n_layers; ++i) own[i] = types[i] != 0;
  return own;
}

absl::Status ReadIndexers(const GgufSource& source, const TensorFinder& find, RopeLayout layout,
                          ModelSpec* spec) {
  constexpr std::string_view kDim = "attention.indexer.key_length";
  IndexerSpec indexer{.layout = layout};
  HEDDLE_ASSIGN_OR_RETURN(indexer.n_heads, source.Dim("attention.indexer.head_count", kMaxHeads));
  HEDDLE_ASSIGN_OR_RETURN(indexer.head_dim, source.Dim(kDim, kMaxHeadDim));
  HEDDLE_ASSIGN_OR_RETURN(indexer.top_k, source.Dim("attention.indexer.top_k", kMaxContext));
  HEDDLE_RETURN_IF_ERROR(CheckIndexer(source, kDim, "attention.q_lora_rank", indexer,
                                      spec->layers.front().attention.mla));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> own, ReadIndexerTypes(source, find, *spec));
  ApplyIndexers(indexer, own, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufDeepseek32(const GgufSource& source, const TensorFinder& find,
                                  ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGgufDeepseek(source, find, spec, names));
  return ReadIndexers(source, find, RopeLayout::kHalf, spec);
}

absl::Status RefineGgufGlmDsa(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGgufDeepseek(source, find, spec, names));
  return ReadIndexers(source, find, RopeLayout::kInterleaved, spec);
}

// Layers without KV heads have one matrix in place of attention; without query heads they have
// neither.
absl::Status RefineGgufDeci(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                            NameMap*) {
  auto per_layer = [&](std::string_view key) -> absl::StatusOr<std::vector<int64_t>> {
    if (!source.IsArray(key)) return std::vector<int64_t>();
    HEDDLE_ASSIGN_OR_RETURN(std::vector<int64_t> values, source.Ints(key));
    if (values.size() == spec->layers.size()) return values;
    return source.Error(key, base::StrCat("an array of ", values.size()),
                        base::StrCat("one of ", spec->n_layers(), ", one per layer"));
  };
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> heads, per_layer("attention.head_count"));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads, per_layer(kKvHeads));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> inter, per_layer("feed_forward_length"));
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    AttentionSpec& attention = spec->layers[i].attention;
    if (!heads.empty()) attention.n_heads = static_cast<int32_t>(heads[i]);
    if (!kv_heads.empty()) attention.n_kv_heads = static_cast<int32_t>(kv_heads[i]);
    if (!inter.empty()) spec->layers[i].mlp.inter = static_cast<int32_t>(inter[i]);
    if (attention.n_kv_heads == 0) {
      attention.linear = attention.n_heads > 0;
      attention.n_heads = 0;
      attention.rope = RopeSpec{};
    } else if (attention.n_heads % attention.n_kv_heads != 0) {
      return source.Error(kKvHeads, base::StrCat(attention.n_kv_heads),
                          base::StrCat("a divisor of the layer's heads (", attention.n_heads, ")"));
    }
  }
  return absl::OkStatus();
}

// The model has one norm for both blocks; if there is a second one, it is attention's.
absl::Status RefineGgufFalcon(const GgufSource&, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  for (LayerSpec& layer : spec->layers) layer.wiring = Wiring::kParallel;
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
