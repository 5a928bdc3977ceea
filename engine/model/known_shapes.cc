// The built-in shapes of random_model.h.
#include <cmath>
#include <initializer_list>
#include <utility>

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

// A model with Mamba-2 recurrences behind 4 taps, whose heads share one key head.
struct MambaShape {
  Shape base;         // n_heads 0: no layer attends
  int32_t heads;      // of a recurrence
  int32_t value_dim;  // of a head
  int32_t key_dim;
  bool norms;            // what recurrences give is gated and RMS-normed, else gated
  uint64_t attends;      // bit i: layer i attends in place of a recurrence
  bool beside = false;   // all layers have attention and, beside it, a recurrence
  bool rotates = false;  // attention knows positions
  int32_t experts = 0;   // beside the MLP, of width expert_inter, of which a row has top_k
  int32_t top_k = 0;
  int32_t expert_inter = 0;
};

constexpr uint64_t LayerBits(std::initializer_list<int> layers) {
  uint64_t bits = 0;
  for (const int layer : layers) bits |= uint64_t{1} << layer;
  return bits;
}
constexpr uint64_t kEveryTenth = LayerBits({5, 15, 25, 35});

// The dimensions are those of each model's published config.json; models that only recur have no
// limit of positions, and get 1 << 20.
constexpr MambaShape kMambaShapes[] = {
    {{"mamba2-2.7b", 64, 2560, 0, 0, 0, 0, 50288, 1 << 20, true, false, false},
     80,
     64,
     128,
     true,
     0},
    {{"granite-4.0-h-350m", 32, 768, 2048, 12, 4, 64, 100352, 32768, true, false, false},
     48,
     32,
     128,
     true,
     LayerBits({10, 13, 17, 27})},
    {{"granite-4.0-h-1b", 40, 1536, 4096, 12, 4, 128, 100352, 131072, true, false, false},
     48,
     64,
     128,
     true,
     kEveryTenth},
    {{"granite-4.0-h-tiny", 40, 1536, 1024, 12, 4, 128, 100352, 131072, true, false, false},
     48,
     64,
     128,
     true,
     kEveryTenth,
     false,
     false,
     64,
     6,
     512},
    {{"granite-4.0-h-small", 40, 4096, 1536, 32, 8, 128, 100352, 131072, true, false, false},
     128,
     64,
     128,
     true,
     kEveryTenth,
     false,
     false,
     72,
     10,
     768},
    {{"falcon-h1-0.5b", 36, 1024, 2048, 8, 2, 64, 32784, 16384, false, false, false},
     24,
     64,
     128,
     false,
     0,
     true,
     true},
    {{"falcon-h1-1.5b", 24, 2048, 4608, 8, 2, 128, 65537, 131072, false, false, false},
     48,
     64,
     256,
     false,
     0,
     true,
     true},
};

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
  if (shape.head_dim > 0) {
    layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  }
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

void SetMamba(const MambaShape& shape, AttentionSpec* attention) {
  *attention = {};
  RecurrenceSpec& recurrence = attention->recurrence;
  recurrence.shape = {.rule = kernels::RecurrenceRule::kMamba2,
                      .n_heads = shape.heads,
                      .n_key_heads = 1,
                      .key_dim = shape.key_dim,
                      .value_dim = shape.value_dim,
                      .taps = 4};
  recurrence.conv_bias = recurrence.skip = recurrence.gates_first = true;
  if (!shape.norms) return;
  recurrence.norm_width = recurrence.shape.values();
  recurrence.norm_per_value = true;
}

ModelSpec ToSpec(const MambaShape& shape) {
  ModelSpec spec = ToSpec(shape.base);
  std::vector<LayerSpec> layers;
  layers.reserve(spec.layers.size() * 2);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec layer = spec.layers[i];
    if (!shape.rotates) layer.attention.rope.rotary_dim = 0;
    if (shape.experts > 0) {
      layer.moe.n_experts = shape.experts;
      layer.moe.inter = shape.expert_inter;
      layer.moe.rule = {.top_k = shape.top_k, .renormalise = true};
    }
    if (shape.beside) {  // two layers here, of which the second reads what the first one has read
      layers.push_back(layer);
      layers.back().mlp.inter = 0;
      layer.attention_input = AttentionInput::kShared;
    }
    if ((shape.attends >> i & 1) == 0) SetMamba(shape, &layer.attention);
    layers.push_back(layer);
  }
  spec.layers = std::move(layers);
  return spec;
}

}  // namespace

std::vector<std::string_view> KnownShapeNames() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  for (const MambaShape& shape : kMambaShapes) names.push_back(shape.base.name);
  return names;
}

absl::StatusOr<ModelSpec> KnownShape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return ToSpec(shape);
  }
  for (const MambaShape& shape : kMambaShapes) {
    if (shape.base.name == name) return ToSpec(shape);
  }
  return absl::NotFoundError(absl::StrCat(
      "no built-in shape \"", std::string(name), "\"; there are ",
      absl::StrJoin(KnownShapeNames(), ", ",
                    [](std::string* out, std::string_view shape) { out->append(shape); })));
}

}  // namespace heddle::engine
