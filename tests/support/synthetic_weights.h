// Weights that need no file: each value is a function of the tensor's name and the index. Bit for
// bit those of tests/golden/synthetic_weights.py, with which the goldens were made.
// Sources: FNV-1a (Fowler, Noll, Vo); SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace heddle::test {

// offset + scale * u, u uniform on the grid of 2^bits points in [-1, 1).
// REQUIRES: scale is a power of two, bits <= 24.
std::vector<float> SyntheticValues(std::string_view name, int64_t count, float scale, float offset,
                                   int bits = 24);

}  // namespace heddle::test
