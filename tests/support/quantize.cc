#include "tests/support/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace heddle::test {
namespace {

using kernels::DType;
using kernels::F32ToBF16;
using kernels::F32ToF16;

template <typename T>
void Append(T value, std::vector<std::byte>* out) {
  const std::byte* bytes = reinterpret_cast<const std::byte*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof(T));
}

// d = max|x| / 127; q = x / d, halves away from zero.
void EncodeQ8_0(std::span<const float> block, std::vector<std::byte>* out) {
  float largest = 0.0f;
  for (float x : block) largest = std::max(largest, std::fabs(x));
  float d = largest / 127.0f;
  float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  Append(F32ToF16(d), out);
  for (float x : block) Append(static_cast<int8_t>(std::round(x * inverse)), out);
}

// d = m / -8, m the value of largest magnitude, so that it falls on -8; q = x / d + 8, rounded.
void EncodeQ4_0(std::span<const float> block, std::vector<std::byte>* out) {
  float extreme = 0.0f;
  for (float x : block) {
    if (std::fabs(x) > std::fabs(extreme)) extreme = x;
  }
  float d = extreme / -8.0f;
  float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  auto nibble = [&](float x) {
    return static_cast<uint8_t>(std::clamp(std::trunc(x * inverse + 8.5f), 0.0f, 15.0f));
  };
  Append(F32ToF16(d), out);
  for (size_t j = 0; j < 16; ++j) {
    Append(static_cast<uint8_t>(nibble(block[j]) | (nibble(block[j + 16]) << 4)), out);
  }
}

}  // namespace

std::vector<std::byte> Encode(std::span<const float> values, int64_t cols, DType dtype) {
  size_t block = static_cast<size_t>(kernels::Info(dtype).block_elements);
  HEDDLE_CHECK(static_cast<size_t>(cols) % block == 0, "rows must be whole blocks");
  std::vector<std::byte> out;
  for (size_t i = 0; i < values.size(); i += block) {
    std::span<const float> part = values.subspan(i, block);
    switch (dtype) {
      case DType::kF32:
        Append(part[0], &out);
        break;
      case DType::kF16:
        Append(F32ToF16(part[0]), &out);
        break;
      case DType::kBF16:
        Append(F32ToBF16(part[0]), &out);
        break;
      case DType::kQ8_0:
        EncodeQ8_0(part, &out);
        break;
      case DType::kQ4_0:
        EncodeQ4_0(part, &out);
        break;
      default:
        HEDDLE_CHECK(false, "no encoder for this type");
    }
  }
  return out;
}

}  // namespace heddle::test
