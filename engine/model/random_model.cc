#include "engine/model/random_model.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

// SplitMix64 (Steele et al., 2014): one 64-bit state step per call, fast enough for gigabytes.
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

// A uniform distribution of variance 1 / cols has half-width sqrt(3 / cols).
float HalfWidth(int64_t cols) { return std::sqrt(3.0f / static_cast<float>(cols)); }

// Floats come from a table of evenly spaced values: four per random number, without a conversion
// per element, so that a billion of them take well under a second.
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

// Block formats get random bytes, except for the fields that spread the values over the range.
enum class FieldType : uint8_t { kNone, kF16, kF32, kPower, kByte, kOnes };
struct Field {
  FieldType type = FieldType::kNone;
  int32_t offset = 0;  // within the block
  // kF16, kF32: the field is half-width times this; kPower: 127 + log2 of that; kByte: this itself;
  // kOnes: four E4M3 of 1.
  float value = 0;
};
struct BlockFill {
  std::string_view name;
  DType dtype;
  Field fields[2];
  uint8_t mask = 0xff;  // applied to the random bytes
};

// Scales of linear codes map the largest code to the half-width, offsets the smallest to its
// negative. Where small integers also scale the sub-blocks, the root mean square of their products
// with the codes maps to that of the uniform distribution.
constexpr BlockFill kBlockFills[] = {
    {"q8_0", DType::kQ8_0, {{FieldType::kF16, 0, 1 / 127.0f}}},
    {"q4_0", DType::kQ4_0, {{FieldType::kF16, 0, 1 / 8.0f}}},
    {"q4_1", DType::kQ4_1, {{FieldType::kF16, 0, 2 / 15.0f}, {FieldType::kF16, 2, -1.0f}}},
    {"q5_0", DType::kQ5_0, {{FieldType::kF16, 0, 1 / 16.0f}}},
    {"q5_1", DType::kQ5_1, {{FieldType::kF16, 0, 2 / 31.0f}, {FieldType::kF16, 2, -1.0f}}},
    {"q2_k", DType::kQ2_K, {{FieldType::kF16, 80, 1 / 22.0f}, {FieldType::kF16, 82, 1 / 14.7f}}},
    {"q3_k", DType::kQ3_K, {{FieldType::kF16, 108, 1 / 73.0f}}},
    {"q4_k", DType::kQ4_K, {{FieldType::kF16, 0, 1 / 442.0f}, {FieldType::kF16, 2, 1 / 59.0f}}},
    {"q5_k", DType::kQ5_K, {{FieldType::kF16, 0, 1 / 902.0f}, {FieldType::kF16, 2, 1 / 58.0f}}},
    {"q6_k", DType::kQ6_K, {{FieldType::kF16, 208, 1 / 2370.0f}}},
    {"iq4_nl", DType::kIQ4_NL, {{FieldType::kF16, 0, 1 / 120.0f}}},
    {"iq4_xs", DType::kIQ4_XS, {{FieldType::kF16, 0, 1 / 2210.0f}}},
    {"mxfp4", DType::kMXFP4, {{FieldType::kPower, 0, 1 / 6.0f}}},
    {"int4_g128", DType::kInt4G128, {{FieldType::kF32, 0, 1 / 8.0f}, {FieldType::kByte, 4, 8.0f}}},
    {"int8_g128", DType::kInt8G128, {{FieldType::kF32, 0, 1 / 127.0f}, {FieldType::kByte, 4, 0}}},
    // Without the first exponent bit codes stay below 2, and none is NaN.
    {"fp8", DType::kF8G128, {{FieldType::kF32, 0, 1 / 1.03f}}, 0xbf},
    {"nf4", DType::kNF4, {{FieldType::kF32, 0, 1.0f}}},
    // Codes without their low bits are 0 and 2: -1 and 1.
    {"tq2_0", DType::kTQ2_0, {{FieldType::kF16, 64, 0.577f}}, 0xaa},
    {"nvfp4", DType::kNVFP4, {{FieldType::kF32, 0, 1 / 6.0f}, {FieldType::kOnes, 4}}},
    {"fp4", DType::kFP4, {{FieldType::kF32, 0, 1.0f}}},
    {"iq1", DType::kIQ1, {{FieldType::kF32, 0, 1 / 731.0f}}},
    {"iq2", DType::kIQ2, {{FieldType::kF32, 0, 1 / 3232.0f}}},
    {"iq3_xxs", DType::kIQ3XXS, {{FieldType::kF32, 0, 1 / 4784.0f}}},
    {"iq3_s", DType::kIQ3S, {{FieldType::kF32, 0, 1 / 1182.0f}}},
};

const BlockFill* FindBlockFill(DType dtype) {
  for (const BlockFill& fill : kBlockFills) {
    if (fill.dtype == dtype) return &fill;
  }
  return nullptr;
}

void SetField(const Field& field, float half_width, std::byte* block) {
  const float value = field.value * half_width;
  const uint16_t half = kernels::F32ToF16(value);
  const auto power = static_cast<uint8_t>(127 + std::lround(std::log2(std::fabs(value) + 1e-30f)));
  const auto byte = static_cast<uint8_t>(field.value);
  switch (field.type) {
    case FieldType::kNone:
      return;
    case FieldType::kF16:
      std::memcpy(block + field.offset, &half, sizeof(half));
      return;
    case FieldType::kF32:
      std::memcpy(block + field.offset, &value, sizeof(value));
      return;
    case FieldType::kPower:
      std::memcpy(block + field.offset, &power, sizeof(power));
      return;
    case FieldType::kByte:
      std::memcpy(block + field.offset, &byte, sizeof(byte));
      return;
    case FieldType::kOnes:
      std::memset(block + field.offset, 0x38, 4);
      return;
  }
}

void FillBlocks(const BlockFill& fill, Random& random, float half_width, int64_t bytes,
                std::byte* out) {
  const int32_t block_bytes = kernels::Info(fill.dtype).block_bytes;
  const uint64_t mask = fill.mask * uint64_t{0x0101010101010101};
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t bits = random.Next() & mask;
    std::memcpy(out + i, &bits, std::min<int64_t>(8, bytes - i));
  }
  std::byte first[256] = {};  // fields are the same in every block
  for (const Field& field : fill.fields) SetField(field, half_width, first);
  for (const Field& field : fill.fields) {
    const bool is_four = field.type == FieldType::kF32 || field.type == FieldType::kOnes;
    const size_t size = is_four ? 4 : field.type == FieldType::kF16 ? 2 : 1;
    if (field.type == FieldType::kNone) continue;
    for (int64_t i = field.offset; i < bytes; i += block_bytes) {
      std::memcpy(out + i, first + field.offset, size);
    }
  }
}

// The type of embeddings and heads beside matrices of `dtype`, as ParseWeightPolicy has them: 8
// bits beside Q4_0, and floats beside FP8, MXFP4 and NVFP4, whose checkpoints do not quantise them.
DType TableFormat(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return DType::kQ8_0;
    case DType::kF8G128:
    case DType::kMXFP4:
    case DType::kNVFP4:
      return DType::kBF16;
    default:
      return dtype;
  }
}

constexpr DType kRouterFormat = DType::kBF16;

class Maker {
 public:
  using Clock = std::chrono::steady_clock;

  Maker(kernels::Device& device, DType dtype, uint64_t seed)
      : device_(device), dtype_(dtype), random_(seed) {}

  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Matrix(const std::vector<int64_t>& rows,
                                                                int64_t cols) {
    return Matrix(rows, cols, dtype_);
  }

  // An embedding or a head.
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Table(int64_t rows, int64_t cols) {
    return Matrix({rows}, cols, TableFormat(dtype_));
  }

  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Matrix(const std::vector<int64_t>& rows,
                                                                int64_t cols, DType dtype) {
    if (cols == 0 || std::accumulate(rows.begin(), rows.end(), int64_t{0}) == 0) return nullptr;
    int64_t row_bytes = kernels::RowBytes(dtype, cols);
    int64_t total = 0;
    for (int64_t n : rows) total += n * row_bytes;
    bytes_.resize(static_cast<size_t>(std::max<int64_t>(total, bytes_.size())));
    std::vector<WeightSource> sources;
    std::byte* data = bytes_.data();
    const auto begin = Clock::now();
    for (int64_t n : rows) {
      Fill(dtype, n * cols, n * row_bytes, HalfWidth(cols), data);
      sources.push_back({.data = data, .dtype = dtype, .rows = n, .cols = cols, .name = "random"});
      data += n * row_bytes;
    }
    made_ += Clock::now() - begin;
    return device_.Pack(sources);
  }

  // `count` matrices of `rows`, one for each expert.
  absl::StatusOr<std::unique_ptr<kernels::PackedStack>> Stack(int32_t count,
                                                              const std::vector<int64_t>& rows,
                                                              int64_t cols) {
    const int64_t row_bytes = kernels::RowBytes(dtype_, cols);
    const int64_t n_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const int64_t total = count * n_rows * row_bytes;
    bytes_.resize(std::max(static_cast<size_t>(total), bytes_.size()));
    const auto begin = Clock::now();
    Fill(dtype_, count * n_rows * cols, total, HalfWidth(cols), bytes_.data());
    made_ += Clock::now() - begin;
    std::vector<WeightSource> sources;
    sources.reserve(static_cast<size_t>(count) * rows.size());
    const std::byte* data = bytes_.data();
    for (int32_t i = 0; i < count; ++i) {
      for (const int64_t n : rows) {
        sources.push_back(
            {.data = data, .dtype = dtype_, .rows = n, .cols = cols, .name = "random"});
        data += n * row_bytes;
      }
    }
    return device_.PackStack(sources, count);
  }

  absl::Status Experts(const MoeSpec& spec, int64_t hidden, MoeWeights* weights) {
    HEDDLE_ASSIGN_OR_RETURN(weights->router.matrix,
                            Matrix({spec.n_experts}, hidden, kRouterFormat));
    const std::vector<int64_t> up(spec.gated ? 2 : 1, spec.inter);
    HEDDLE_ASSIGN_OR_RETURN(weights->up, Stack(spec.n_experts, up, hidden));
    HEDDLE_ASSIGN_OR_RETURN(weights->down, Stack(spec.n_experts, {hidden}, spec.inter));
    return absl::OkStatus();
  }

  double made_seconds() const { return std::chrono::duration<double>(made_).count(); }

  absl::StatusOr<DeviceVector> Constant(int64_t size, float value) {
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer,
                            device_.Allocate(size * int64_t{sizeof(float)}));
    const std::vector<float> values(size, value);
    HEDDLE_RETURN_IF_ERROR(
        device_.Upload(buffer->data(), values.data(), size * int64_t{sizeof(float)}));
    return DeviceVector(std::move(buffer));
  }

  absl::Status Selection(const RecurrenceSpec& spec, int64_t hidden, LayerWeights* weights) {
    const kernels::RecurrenceShape& shape = spec.shape;
    RecurrenceWeights& own = weights->recurrence;
    const int64_t values = shape.values();
    HEDDLE_ASSIGN_OR_RETURN(weights->qkv.matrix, Matrix({values, values}, hidden));
    HEDDLE_ASSIGN_OR_RETURN(own.factors.matrix, Matrix({spec.n_factors()}, values));
    HEDDLE_ASSIGN_OR_RETURN(own.steps.matrix, Matrix({values}, spec.step_rank));
    HEDDLE_ASSIGN_OR_RETURN(own.steps.bias, Constant(values, -4.0f));
    HEDDLE_ASSIGN_OR_RETURN(own.skip, Constant(values, 1.0f));
    const int64_t blocks = kernels::ChannelBlocks(values);
    HEDDLE_ASSIGN_OR_RETURN(own.decay,
                            Constant(blocks * kernels::kChannelBlock * shape.key_dim, -1.0f));
    return absl::OkStatus();
  }

  absl::Status Recurrence(const RecurrenceSpec& spec, int64_t hidden, LayerWeights* weights) {
    const kernels::RecurrenceShape& shape = spec.shape;
    HEDDLE_ASSIGN_OR_RETURN(weights->conv, Constant(shape.channels() * shape.taps, 0.5f));
    if (spec.conv_bias) {
      HEDDLE_ASSIGN_OR_RETURN(weights->conv_bias, Constant(shape.channels(), 0.0f));
    }
    if (shape.is_selective()) return Selection(spec, hidden, weights);
    HEDDLE_ASSIGN_OR_RETURN(
        weights->qkv.matrix,
        Matrix({shape.channels(), shape.values(), shape.cols() - shape.beta_column()}, hidden));
    HEDDLE_ASSIGN_OR_RETURN(weights->recurrence.decay, Constant(shape.n_heads, -0.1f));
    HEDDLE_ASSIGN_OR_RETURN(weights->recurrence.step_bias, Constant(shape.n_heads, 0.0f));
    if (spec.skip) {
      HEDDLE_ASSIGN_OR_RETURN(weights->recurrence.skip, Constant(shape.n_heads, 1.0f));
    }
    if (spec.norm_width == 0) return absl::OkStatus();
    const int64_t norms = spec.norm_per_value ? shape.values() : spec.norm_width;
    HEDDLE_ASSIGN_OR_RETURN(weights->recurrence.norm, Constant(norms, 1.0f));
    return absl::OkStatus();
  }

  absl::StatusOr<LayerWeights> Layer(const ModelSpec& spec, const LayerSpec& layer) {
    const AttentionSpec& attention = layer.attention;
    const int64_t q = int64_t{attention.n_heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
    const int64_t inter = layer.mlp.inter;
    LayerWeights weights;
    HEDDLE_ASSIGN_OR_RETURN(weights.attention_norm.weight, Constant(spec.hidden, 1.0f));
    const int64_t channels = attention.conv.channels;
    const RecurrenceSpec& recurrence = attention.recurrence;
    int64_t out = q + channels;
    if (recurrence.is_here()) {
      HEDDLE_RETURN_IF_ERROR(Recurrence(recurrence, spec.hidden, &weights));
      out = recurrence.shape.values();
    } else if (channels > 0) {
      HEDDLE_ASSIGN_OR_RETURN(weights.qkv.matrix,
                              Matrix({channels, channels, channels}, spec.hidden));
      HEDDLE_ASSIGN_OR_RETURN(weights.conv, Constant(channels * attention.conv.taps, 0.5f));
    } else {
      std::vector<int64_t> parts = {q, kv, kv};
      if (attention.gated) parts.push_back(q);
      HEDDLE_ASSIGN_OR_RETURN(weights.qkv.matrix, Matrix(parts, spec.hidden));
    }
    if (attention.qkv_bias) {
      HEDDLE_ASSIGN_OR_RETURN(weights.qkv.bias, Constant(q + 2 * kv, 0.0f));
    }
    if (attention.qk_norm == QkNorm::kPerHead) {
      HEDDLE_ASSIGN_OR_RETURN(weights.q_norm, Constant(attention.head_dim, 1.0f));
      HEDDLE_ASSIGN_OR_RETURN(weights.k_norm, Constant(attention.head_dim, 1.0f));
    }
    HEDDLE_ASSIGN_OR_RETURN(weights.out.matrix, Matrix({spec.hidden}, out));
    if (layer.moe.n_experts > 0) {
      HEDDLE_RETURN_IF_ERROR(Experts(layer.moe, spec.hidden, &weights.moe));
    }
    if (inter == 0) return weights;
    HEDDLE_ASSIGN_OR_RETURN(weights.mlp_norm.weight, Constant(spec.hidden, 1.0f));
    std::vector<int64_t> up(layer.mlp.gated ? 2 : 1, inter);
    HEDDLE_ASSIGN_OR_RETURN(weights.up.matrix, Matrix(up, spec.hidden));
    HEDDLE_ASSIGN_OR_RETURN(weights.down.matrix, Matrix({spec.hidden}, inter));
    return weights;
  }

 private:
  void Fill(DType dtype, int64_t elements, int64_t bytes, float half_width, std::byte* out) {
    if (const BlockFill* fill = FindBlockFill(dtype); fill != nullptr) {
      FillBlocks(*fill, random_, half_width, bytes, out);
    } else {
      FillFloats(dtype, random_, half_width, elements, out);
    }
  }

  kernels::Device& device_;
  const DType dtype_;
  Random random_;
  Clock::duration made_{};
  std::vector<std::byte> bytes_;  // the matrix being made; its memory is reused
};

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

absl::StatusOr<kernels::DType> RandomFormat(std::string_view name) {
  if (name == "auto") return DType::kBF16;
  if (name == "int8") return DType::kQ8_0;
  if (name == "int4") return DType::kQ4_0;
  std::vector<std::string_view> names;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    names.push_back(kernels::Info(dtype).name);
    if (names.back() == name) return dtype;
  }
  for (const BlockFill& fill : kBlockFills) {
    names.push_back(fill.name);
    if (fill.name == name) return fill.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no random weights of format \"", std::string(name), "\"; there are ",
      absl::StrJoin(names, ", ",
                    [](std::string* out, std::string_view format) { out->append(format); })));
}

absl::Status CheckWholeBlocks(const ModelSpec& spec, DType dtype) {
  const kernels::DTypeInfo& info = kernels::Info(dtype);
  std::vector<int64_t> widths = {spec.hidden};
  for (const LayerSpec& layer : spec.layers) {
    const RecurrenceSpec& recurrence = layer.attention.recurrence;
    widths.push_back(int64_t{layer.attention.n_heads} * layer.attention.head_dim +
                     layer.attention.conv.channels +
                     (recurrence.is_here() ? recurrence.shape.values() : 0));
    widths.push_back(layer.mlp.inter);
    widths.push_back(layer.moe.n_experts > 0 ? layer.moe.inter : 0);
    widths.push_back(recurrence.step_rank);
  }
  for (int64_t width : widths) {
    if (width % info.block_elements == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of ", width, " are not whole blocks of ", info.block_elements, ", which ",
        std::string(info.name), " has; formats with smaller blocks fit this shape"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> RandomWeights(kernels::Device& device, const ModelSpec& spec,
                                           DType dtype, uint64_t seed, double* made_seconds) {
  HEDDLE_CHECK(spec.norm == NormKind::kRms && !spec.learned_positions,
               "random weights are for Llama-like shapes");
  HEDDLE_CHECK(IsFloat(dtype) || FindBlockFill(dtype) != nullptr,
               "random weights: a format without a row in kBlockFills");
  HEDDLE_RETURN_IF_ERROR(CheckWholeBlocks(spec, dtype));
  Maker maker(device, dtype, seed);
  ModelWeights weights;
  HEDDLE_ASSIGN_OR_RETURN(weights.embedding, maker.Table(spec.own_vocab(), spec.hidden));
  for (const LayerSpec& layer : spec.layers) {
    HEDDLE_ASSIGN_OR_RETURN(LayerWeights made, maker.Layer(spec, layer));
    weights.layers.push_back(std::move(made));
  }
  HEDDLE_ASSIGN_OR_RETURN(weights.final_norm.weight, maker.Constant(spec.hidden, 1.0f));
  if (!spec.tied_embeddings) {
    HEDDLE_ASSIGN_OR_RETURN(weights.separate_head, maker.Table(spec.own_vocab(), spec.hidden));
  }
  if (made_seconds != nullptr) *made_seconds = maker.made_seconds();
  return weights;
}

int64_t WeightBytes(const ModelSpec& spec, DType dtype, const kernels::Device* device) {
  const auto bytes_of = [&](DType type, int64_t cols) {
    return device != nullptr ? device->PackedRowBytes(type, cols) : kernels::RowBytes(type, cols);
  };
  const auto row_bytes = [&](int64_t cols) { return bytes_of(dtype, cols); };
  int64_t bytes =
      (spec.tied_embeddings ? 1 : 2) * spec.own_vocab() * bytes_of(TableFormat(dtype), spec.hidden);
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const int64_t q = int64_t{attention.n_heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
    const int64_t channels = attention.conv.channels;
    const int64_t up_rows = int64_t{layer.mlp.gated ? 2 : 1} * layer.mlp.inter;
    const kernels::RecurrenceShape& shape = attention.recurrence.shape;
    const bool recurs = attention.recurrence.is_here();
    const int64_t gates = attention.product_dim() - attention.qkv_dim();
    const int64_t rows = q + 2 * kv + gates + 3 * channels + (recurs ? shape.cols() : 0);
    const int64_t out = q + channels + (recurs ? shape.values() : 0);
    bytes += (rows + up_rows) * row_bytes(spec.hidden) +
             spec.hidden * (row_bytes(out) + row_bytes(layer.mlp.inter));
    const MoeSpec& moe = layer.moe;
    if (moe.n_experts > 0) {
      const int64_t expert_up = int64_t{moe.gated ? 2 : 1} * moe.inter;
      bytes +=
          moe.n_experts * (bytes_of(kRouterFormat, spec.hidden) +
                           expert_up * row_bytes(spec.hidden) + spec.hidden * row_bytes(moe.inter));
    }
    if (recurs && shape.is_selective()) {
      bytes += attention.recurrence.n_factors() * row_bytes(shape.values()) +
               shape.values() * row_bytes(attention.recurrence.step_rank);
    }
  }
  return bytes;
}

}  // namespace heddle::engine
