#include "engine/model/random_model.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

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
};

// From the config.json of each model as published.
constexpr Shape kShapes[] = {
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 64, 32000, 2048, false, false, false},
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, true, false, false},
    {"llama-3.2-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, true, false, false},
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, false, false, false},
    {"mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768, false, false, false},
    {"qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64, 151936, 32768, true, true, false},
    {"qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 128, 151936, 32768, true, true, false},
    {"qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, 32768, false, true, false},
    {"qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151936, 40960, true, false, true},
    {"qwen3-1.7b", 28, 2048, 6144, 16, 8, 128, 151936, 40960, true, false, true},
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
  return spec;
}

// splitmix64 (Steele et al. 2014): one 64-bit state step per call, cheap enough for gigabytes.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Uniform values of variance 1 / cols have half-width sqrt(3 / cols).
float HalfWidth(int64_t cols) { return std::sqrt(3.0f / static_cast<float>(cols)); }

// Floats come from a table of evenly spaced values: four of them per random number, and no
// conversion per element, so that a billion of them take well under a second.
constexpr int64_t kTableBits = 12;
constexpr int64_t kTableSize = int64_t{1} << kTableBits;

template <typename T, typename Convert>
void FillFromTable(Random& random, float half_width, int64_t elements, Convert convert, T* out) {
  std::vector<T> table(kTableSize);
  for (int64_t i = 0; i < kTableSize; ++i) {
    table[i] = convert((static_cast<float>(2 * i + 1) / kTableSize - 1.0f) * half_width);
  }
  for (int64_t i = 0; i < elements; i += 4) {
    const uint64_t bits = random.Next();
    for (int64_t j = 0; j < 4 && i + j < elements; ++j) {
      out[i + j] = table[(bits >> (16 * j)) & (kTableSize - 1)];
    }
  }
}

void FillFloats(DType dtype, Random& random, float half_width, int64_t elements, std::byte* out) {
  if (dtype == DType::kF32) {
    FillFromTable(
        random, half_width, elements, [](float x) { return x; }, reinterpret_cast<float*>(out));
  } else {
    FillFromTable(random, half_width, elements,
                  dtype == DType::kF16 ? kernels::F32ToF16 : kernels::F32ToBF16,
                  reinterpret_cast<uint16_t*>(out));
  }
}

// Block formats: random bytes, but for one F16 scale, which spreads the integers over the range.
struct BlockScale {
  DType dtype;
  int32_t offset;  // of the scale within the block
  float largest;   // integer that stands for the half-width
};
constexpr BlockScale kBlockScales[] = {{DType::kQ8_0, 0, 127.0f}, {DType::kQ4_0, 0, 8.0f}};

const BlockScale* FindBlockScale(DType dtype) {
  for (const BlockScale& scale : kBlockScales) {
    if (scale.dtype == dtype) return &scale;
  }
  return nullptr;
}

void FillBlocks(const BlockScale& format, Random& random, float half_width, int64_t bytes,
                std::byte* out) {
  const int32_t block_bytes = kernels::Info(format.dtype).block_bytes;
  const uint16_t scale = kernels::F32ToF16(half_width / format.largest);
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t bits = random.Next();
    std::memcpy(out + i, &bits, std::min<int64_t>(8, bytes - i));
  }
  for (int64_t i = format.offset; i < bytes; i += block_bytes) std::memcpy(out + i, &scale, 2);
}

class Maker {
 public:
  Maker(kernels::Device& device, DType dtype, uint64_t seed)
      : device_(device), dtype_(dtype), random_(seed) {}

  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Matrix(const std::vector<int64_t>& rows,
                                                                int64_t cols) {
    const kernels::DTypeInfo& info = kernels::Info(dtype_);
    if (cols % info.block_elements != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows of ", cols, " are not whole blocks of ", std::string(info.name)));
    }
    int64_t row_bytes = kernels::RowBytes(dtype_, cols);
    int64_t total = 0;
    for (int64_t n : rows) total += n * row_bytes;
    bytes_.resize(static_cast<size_t>(std::max<int64_t>(total, bytes_.size())));
    std::vector<WeightSource> sources;
    std::byte* data = bytes_.data();
    for (int64_t n : rows) {
      Fill(n * cols, n * row_bytes, HalfWidth(cols), data);
      sources.push_back({.data = data, .dtype = dtype_, .rows = n, .cols = cols, .name = "random"});
      data += n * row_bytes;
    }
    return device_.Pack(sources);
  }

  absl::StatusOr<DeviceVector> Constant(int64_t size, float value) {
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer,
                            device_.Allocate(size * int64_t{sizeof(float)}));
    const std::vector<float> values(size, value);
    HEDDLE_RETURN_IF_ERROR(
        device_.Upload(buffer->data(), values.data(), size * int64_t{sizeof(float)}));
    return DeviceVector(std::move(buffer));
  }

  absl::StatusOr<LayerWeights> Layer(const ModelSpec& spec, const LayerSpec& layer) {
    const AttentionSpec& attention = layer.attention;
    const int64_t q = int64_t{attention.n_heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
    const int64_t inter = layer.mlp.inter;
    LayerWeights weights;
    HEDDLE_ASSIGN_OR_RETURN(weights.attention_norm.weight, Constant(spec.hidden, 1.0f));
    HEDDLE_ASSIGN_OR_RETURN(weights.qkv.matrix, Matrix({q, kv, kv}, spec.hidden));
    if (attention.qkv_bias) {
      HEDDLE_ASSIGN_OR_RETURN(weights.qkv.bias, Constant(q + 2 * kv, 0.0f));
    }
    if (attention.qk_norm == QkNorm::kPerHead) {
      HEDDLE_ASSIGN_OR_RETURN(weights.q_norm, Constant(attention.head_dim, 1.0f));
      HEDDLE_ASSIGN_OR_RETURN(weights.k_norm, Constant(attention.head_dim, 1.0f));
    }
    HEDDLE_ASSIGN_OR_RETURN(weights.out.matrix, Matrix({spec.hidden}, q));
    HEDDLE_ASSIGN_OR_RETURN(weights.mlp_norm.weight, Constant(spec.hidden, 1.0f));
    std::vector<int64_t> up(layer.mlp.gated ? 2 : 1, inter);
    HEDDLE_ASSIGN_OR_RETURN(weights.up.matrix, Matrix(up, spec.hidden));
    HEDDLE_ASSIGN_OR_RETURN(weights.down.matrix, Matrix({spec.hidden}, inter));
    return weights;
  }

 private:
  void Fill(int64_t elements, int64_t bytes, float half_width, std::byte* out) {
    if (const BlockScale* scale = FindBlockScale(dtype_); scale != nullptr) {
      FillBlocks(*scale, random_, half_width, bytes, out);
    } else {
      FillFloats(dtype_, random_, half_width, elements, out);
    }
  }

  kernels::Device& device_;
  const DType dtype_;
  Random random_;
  std::vector<std::byte> bytes_;  // the matrix in the making; memory is kept from one to the next
};

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
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

absl::StatusOr<kernels::DType> RandomFormat(std::string_view name) {
  if (name == "auto") return DType::kBF16;
  if (name == "int8") return DType::kQ8_0;
  if (name == "int4") return DType::kQ4_0;
  std::vector<DType> formats = {DType::kF32, DType::kF16, DType::kBF16};
  for (const BlockScale& scale : kBlockScales) formats.push_back(scale.dtype);
  for (DType dtype : formats) {
    if (kernels::Info(dtype).name == name) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no random weights of format \"", std::string(name), "\"; there are ",
                   absl::StrJoin(formats, ", ", [](std::string* out, DType dtype) {
                     out->append(kernels::Info(dtype).name);
                   })));
}

absl::StatusOr<ModelWeights> RandomWeights(kernels::Device& device, const ModelSpec& spec,
                                           DType dtype, uint64_t seed) {
  HEDDLE_CHECK(spec.norm == NormKind::kRms && !spec.learned_positions,
               "random weights are for Llama-like shapes");
  HEDDLE_CHECK(IsFloat(dtype) || FindBlockScale(dtype) != nullptr,
               "random weights: a format without a row in kBlockScales");
  Maker maker(device, dtype, seed);
  ModelWeights weights;
  HEDDLE_ASSIGN_OR_RETURN(weights.embedding, maker.Matrix({spec.vocab}, spec.hidden));
  for (const LayerSpec& layer : spec.layers) {
    HEDDLE_ASSIGN_OR_RETURN(LayerWeights made, maker.Layer(spec, layer));
    weights.layers.push_back(std::move(made));
  }
  HEDDLE_ASSIGN_OR_RETURN(weights.final_norm.weight, maker.Constant(spec.hidden, 1.0f));
  if (!spec.tied_embeddings) {
    HEDDLE_ASSIGN_OR_RETURN(weights.separate_head, maker.Matrix({spec.vocab}, spec.hidden));
  }
  return weights;
}

int64_t WeightBytes(const ModelSpec& spec, DType dtype) {
  int64_t bytes =
      (spec.tied_embeddings ? 1 : 2) * spec.vocab * kernels::RowBytes(dtype, spec.hidden);
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const int64_t q = int64_t{attention.n_heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
    const int64_t up_rows = int64_t{layer.mlp.gated ? 2 : 1} * layer.mlp.inter;
    bytes +=
        (q + 2 * kv + up_rows) * kernels::RowBytes(dtype, spec.hidden) +
        spec.hidden * (kernels::RowBytes(dtype, q) + kernels::RowBytes(dtype, layer.mlp.inter));
  }
  return bytes;
}

}  // namespace heddle::engine
