// Writes floats in the formats of checkpoints, for tests that make model files. Bit for bit what
// the `gguf` Python package writes (tests/golden/quantize.json).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dtype.h"

namespace heddle::test {

// `values` as rows of `cols` elements in `dtype`. REQUIRES: cols is a multiple of its block.
std::vector<std::byte> Encode(std::span<const float> values, int64_t cols, kernels::DType dtype);

}  // namespace heddle::test
