#include "engine/model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/kv_element.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;

constexpr int64_t kBlock = 32;

// Smallest magnitude of a row that is all zeros or noise: the inverse of its scale must be finite.
constexpr float kLeastMagnitude = 1e-30f;

float ScaleOf(uint16_t half) { return kernels::F16ToF32(half); }

// The nearest integer, ties to even, of |x| < 2^22: the last bit of the sum is worth 1. Compilers
// can vectorise this, but not calls of nearbyint.
float Nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

void EncodeQ8(const float* x, uint8_t* out) {
  float largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const uint16_t half = kernels::F32ToF16(largest / 127.0f);
  const float inverse = ScaleOf(half) > 0 ? 1.0f / ScaleOf(half) : 0.0f;
  std::memcpy(out, &half, 2);
  for (int64_t i = 0; i < kBlock; ++i) {
    const float q = std::clamp(Nearest(x[i] * inverse), -127.0f, 127.0f);
    out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(q));
  }
}

float Clamp4(float q) {
  q = q < -8.0f ? -8.0f : q;
  return q > 7.0f ? 7.0f : q;
}

// Squared error of a block in steps of `scale`, codes -8 .. 7.
float ErrorAt(const float* x, float scale) {
  const float inverse = 1.0f / scale;
  float sums[8] = {};  // independent sums can be vectorised, too
  for (int64_t i = 0; i < kBlock; i += 8) {
    for (int64_t j = 0; j < 8; ++j) {
      const float difference = x[i + j] - Clamp4(Nearest(x[i + j] * inverse)) * scale;
      sums[j] += difference * difference;
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void EncodeQ4(const float* x, uint8_t* out) {
  float extreme = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  uint16_t best = 0;
  float least = -1;
  // A divisor of -8 maps the extreme to -8. Smaller magnitudes clip it in favour of finer steps;
  // larger ones and the other sign leave room on its side.
  for (float divisor : {-8.0f, -7.5f, -7.0f, -8.5f, -9.0f, 7.0f, 7.5f, 6.5f, 8.0f}) {
    const uint16_t half = kernels::F32ToF16(extreme / divisor);
    const float scale = ScaleOf(half);
    if (scale == 0.0f || !std::isfinite(scale)) continue;
    const float error = ErrorAt(x, scale);
    if (least >= 0 && !(error < least)) continue;
    least = error;
    best = half;
  }
  const float inverse = best != 0 ? 1.0f / ScaleOf(best) : 0.0f;
  std::memcpy(out, &best, 2);
  auto nibble = [&](int64_t i) {
    return static_cast<uint8_t>(Clamp4(Nearest(x[i] * inverse)) + 8.0f);
  };
  for (int64_t j = 0; j < 16; ++j) {
    out[2 + j] = static_cast<uint8_t>(nibble(j) | nibble(j + 16) << 4);
  }
}

bool IsF8(DType dtype) { return dtype == DType::kF8G32 || dtype == DType::kF8G128; }

void EncodeF8(DType dtype, const float* row, int64_t cols, uint8_t* out) {
  const int32_t block = kernels::Info(dtype).block_elements;
  float largest = 0;
  for (int64_t k = 0; k < cols; ++k) largest = std::max(largest, std::fabs(row[k]));
  const float scale = std::max(largest, kLeastMagnitude) / 448.0f;
  const float inverse = 1.0f / scale;
  for (int64_t k = 0; k < cols; ++k) {
    if (k % block == 0) {
      std::memcpy(out, &scale, sizeof(scale));
      out += sizeof(scale);
    }
    *out++ = kernels::F32ToF8E4M3(row[k] * inverse);
  }
}

double BitsPerWeight(DType dtype) {
  const kernels::DTypeInfo& info = kernels::Info(dtype);
  return 8.0 * info.block_bytes / info.block_elements;
}

}  // namespace

absl::StatusOr<WeightPolicy> ParseWeightPolicy(const std::string& name) {
  if (name == "auto") return WeightPolicy{};
  if (name == "int8") return WeightPolicy{.matrix = DType::kQ8_0, .table = DType::kQ8_0};
  if (name == "int4") return WeightPolicy{.matrix = DType::kQ4_0, .table = DType::kQ8_0};
  if (name == "fp8") return WeightPolicy{.matrix = DType::kF8G32, .table = std::nullopt};
  return absl::InvalidArgumentError(
      absl::StrCat("--weights is \"", name, "\"; valid for a model are auto, int8, int4 and fp8"));
}

DType KeptAs(const WeightPolicy& policy, WeightRole role, DType dtype, int64_t cols) {
  const std::optional<DType> wanted = role == WeightRole::kTable ? policy.table : policy.matrix;
  if (!wanted || role == WeightRole::kExact || cols % kBlock != 0) return dtype;
  if (BitsPerWeight(*wanted) >= BitsPerWeight(dtype)) return dtype;
  return *wanted == DType::kF8G32 && cols % 128 == 0 ? DType::kF8G128 : *wanted;
}

void EncodeRow(DType dtype, const float* row, int64_t cols, uint8_t* out) {
  if (IsF8(dtype)) return EncodeF8(dtype, row, cols, out);
  HEDDLE_CHECK(dtype == DType::kQ8_0 || dtype == DType::kQ4_0, "no encoder for this type");
  const int32_t bytes = kernels::Info(dtype).block_bytes;
  for (int64_t k = 0; k < cols; k += kBlock, out += bytes) {
    if (dtype == DType::kQ8_0) {
      EncodeQ8(row + k, out);
    } else {
      EncodeQ4(row + k, out);
    }
  }
}

void QuantizingReader::ReadRows(int64_t begin, int64_t count, uint8_t* out) const {
  std::vector<uint8_t> buffer;
  std::vector<float> values(static_cast<size_t>(source_.cols));
  const uint8_t* rows = kernels::SourceRows(source_, begin, count, &buffer);
  for (int64_t r = 0; r < count; ++r) {
    kernels::DecodeSourceRow(source_, rows + r * kernels::RowBytes(source_.dtype, source_.cols),
                             values.data());
    EncodeRow(dtype_, values.data(), source_.cols,
              out + r * kernels::RowBytes(dtype_, source_.cols));
  }
}

kernels::WeightSource QuantizingReader::source() const {
  kernels::WeightSource quantised;
  quantised.dtype = dtype_;
  quantised.rows = source_.rows;
  quantised.cols = source_.cols;
  quantised.name = source_.name;
  quantised.reader = this;
  quantised.sum_borders = source_.sum_borders;
  return quantised;
}

KeptSources::KeptSources(const WeightPolicy& policy, WeightRole role,
                         std::span<const kernels::WeightSource> sources) {
  for (const kernels::WeightSource& source : sources) {
    const DType kept = KeptAs(policy, role, source.dtype, source.cols);
    if (kept == source.dtype) {
      sources_.push_back(source);
      continue;
    }
    readers_.push_back(std::make_unique<QuantizingReader>(source, kept));
    sources_.push_back(readers_.back()->source());
  }
}

double QuantizingError::relative_rms() const {
  return values > 0 ? std::sqrt(differences / values) : 0.0;
}

QuantizingError MeasureQuantizing(const kernels::WeightSource& source, DType dtype) {
  QuantizingError error;
  std::vector<uint8_t> buffer;
  std::vector<float> values(static_cast<size_t>(source.cols));
  std::vector<float> decoded(values.size());
  std::vector<uint8_t> encoded(static_cast<size_t>(kernels::RowBytes(dtype, source.cols)));
  for (int64_t r = 0; r < source.rows; ++r) {
    kernels::DecodeSourceRow(source, kernels::SourceRows(source, r, 1, &buffer), values.data());
    EncodeRow(dtype, values.data(), source.cols, encoded.data());
    kernels::DequantizeRow(dtype, encoded.data(), source.cols, decoded.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = static_cast<double>(decoded[i]) - values[i];
      error.values += static_cast<double>(values[i]) * values[i];
      error.differences += difference * difference;
    }
  }
  return error;
}

}  // namespace heddle::engine
