// How far results of a device may be from the reference's, and the formats whose rows of x become
// codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/testing.h"

namespace heddle::gpu {

// The largest |found - expected| as a share of 1 % of the largest expected value: BF16 roundings of
// inputs, weights and output stay well below it, and any wrong index exceeds it.
inline double Worst(const std::vector<float>& found, const std::vector<float>& expected) {
  double largest = 1e-6, worst = 0;
  for (float value : expected) largest = std::max<double>(largest, std::fabs(value));
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::fabs(static_cast<double>(found[i]) - expected[i]);
    worst = std::isnan(error) ? 1e9 : std::max(worst, error);
  }
  return worst / (0.01 * largest);
}

// For products of codes. The allowed error is a share of the root mean square: E4M3 rounds the rows
// of both products by 2.6 % on average, and a gated product combines the errors of both its parts.
inline double WorstOfCodes(const std::vector<float>& found, const std::vector<float>& expected) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    square += std::pow(static_cast<double>(expected[i]), 2);
  }
  const double worst = std::sqrt(difference / square) / 0.08;
  return std::isnan(worst) ? 1e9 : worst;
}

// A format whose rows of x become codes, if library and device multiply these.
struct CodeFormat {
  kernels::DType dtype;
  bool tiled;  // one scale for 128 rows and columns, not for a row

  const char* words() const { return tiled ? ", one scale per tile" : ", one scale per row"; }
  kernels::test::TestWeight Make(kernels::test::Random& random, int64_t rows, int64_t cols) const {
    return tiled ? kernels::test::MakeTileScaledWeight(random, dtype, rows, cols)
                 : kernels::test::MakeRowScaledWeight(random, dtype, rows, cols);
  }
};

}  // namespace heddle::gpu
