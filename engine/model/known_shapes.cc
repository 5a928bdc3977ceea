// The built-in shapes of random_model.h.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/random_model.h"

namespace heddle::engine {
namespace {

struct Shape {
  std::string_view name;
  int32_t layers;
  int32_t hidden;
  int32_t inter;
  int32_t n_heads;
  int32_t n_kv_heads;
  int32_t head_dim;
  int32_t vocab;
  int32_t max_context;
  bool tied;
  bool qkv_bias;
  bool qk_norm;
  uint64_t convolves = 0;  // bit i: layer i is a short convolution of 3 taps
  // > 0: three layers of four are gated delta nets of so many heads over 16 key heads, all of 128,
  // behind 4 taps; the others' heads have gates.
  int32_t delta_heads = 0;
  // > 0: every layer is a selective scan of so many channels (Mamba), of 16 numbers each, and
  // nothing else.
  int32_t scan_channels = 0;
};

// The dimensions are those of each model's published config.json.
constexpr Shape kShapes[] = {
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 64, 32000, 2048, false, false, false},
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, true, false, false},
    {"llama-3.2-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, true, false, false},
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, false, false, false},
    {"llama-3.1-70b", 80, 8192, 28672, 64, 8, 128, 128256, 131072, false, false, false},
    {"mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768, false, false, false},
    {"qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64, 151936, 32768, true, true, false},
    {"qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 128, 151936, 32768, true, true, false},
    {"qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, 32768, false, true, false},
    {"qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151936, 40960, true, false, true},
    {"qwen3-1.7b", 28, 2048, 6144, 16, 8, 128, 151936, 40960, true, false, true},
    {"lfm2-1.2b", 16, 2048, 8192, 32, 8, 64, 65536, 128000, true, false, true, 0xaadb},
    {"qwen3.5-0.8b", 24, 1024, 3584, 8, 2, 256, 248320, 262144, true, false, true, 0, 16},
    {"qwen3.5-9b", 32, 4096, 12288, 16, 4, 256, 248320, 262144, false, false, true, 0, 32},
    {"mamba-130m", 24, 768, 0, 1, 1, 64, 50280, 1 << 20, true, false, false, 0, 0, 1536},
    {"mamba-2.8b", 64, 2560, 0, 1, 1, 64, 50280, 1 << 20, true, false, false, 0, 0, 5120},
    {"qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, 40960, false, false, true},
};

ModelSpec ToSpec(const Shape& shape) {
  LayerSpec layer;
  layer.attention.n_heads = shape.n_heads;
  layer.attention.n_kv_heads = shape.n_kv_heads;
  layer.attention.head_dim = shape.head_dim;
  layer.attention.qkv_bias = shape.qkv_bias;
  layer.attention.qk_norm = shape.qk_norm ? QkNorm::kPerHead : QkNorm::kNone;
  layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  layer.attention.rope.rotary_dim = shape.head_dim;
  layer.mlp.inter = shape.inter;
  ModelSpec spec;
  spec.family = std::string(shape.name);
  spec.hidden = shape.hidden;
  spec.vocab = shape.vocab;
  spec.max_context = shape.max_context;
  spec.tied_embeddings = shape.tied;
  spec.layers.assign(shape.layers, layer);
  for (size_t i = 0; i < spec.layers.size() && i < 64; ++i) {
    if ((shape.convolves >> i & 1) == 0) continue;
    AttentionSpec& attention = spec.layers[i].attention;
    attention = {.conv = {.taps = 3, .channels = shape.hidden}};
  }
  for (size_t i = 0; i < spec.layers.size() && shape.delta_heads > 0; ++i) {
    AttentionSpec& attention = spec.layers[i].attention;
    if (i % 4 == 3) {
      attention.gated = true;
      attention.rope.rotary_dim = shape.head_dim / 4;
      continue;
    }
    attention = {};
    attention.recurrence.shape = {.n_heads = shape.delta_heads,
                                  .n_key_heads = 16,
                                  .key_dim = 128,
                                  .value_dim = 128,
                                  .taps = 4};
    attention.recurrence.norm_width = 128;
  }
  for (LayerSpec& each : spec.layers) {
    if (shape.scan_channels == 0) break;
    each.attention = {};
    RecurrenceSpec& recurrence = each.attention.recurrence;
    recurrence.shape = {.rule = kernels::RecurrenceRule::kSelective,
                        .n_heads = 1,
                        .n_key_heads = 1,
                        .key_dim = 16,
                        .value_dim = shape.scan_channels,
                        .taps = 4};
    recurrence.step_rank = (shape.hidden + 15) / 16;
    recurrence.skip = true;
  }
  return spec;
}

}  // namespace

std::vector<std::string_view> KnownShapeNames() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

absl::StatusOr<ModelSpec> KnownShape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return ToSpec(shape);
  }
  return absl::NotFoundError(absl::StrCat(
      "no built-in shape \"", std::string(name), "\"; there are ",
      absl::StrJoin(KnownShapeNames(), ", ",
                    [](std::string* out, std::string_view shape) { out->append(shape); })));
}

}  // namespace heddle::engine
