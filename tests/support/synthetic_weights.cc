#include "tests/support/synthetic_weights.h"

#include <cmath>

namespace heddle::test {
namespace {

uint64_t Fnv1a(std::string_view name) {
  uint64_t value = 0xCBF29CE484222325u;
  for (char c : name) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return value;
}

uint64_t SplitMix(uint64_t state) {
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<float> SyntheticValues(std::string_view name, int64_t count, float scale, float offset,
                                   int bits) {
  uint64_t key = Fnv1a(name);
  float step = std::ldexp(1.0f, 1 - bits);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t random = SplitMix(key + (i + 1) * 0x9E3779B97F4A7C15u) >> (64 - bits);
    float grid = static_cast<float>(random) * step - 1.0f;  // exact, as is the product below
    values[i] = offset + scale * grid;
  }
  return values;
}

}  // namespace heddle::test
