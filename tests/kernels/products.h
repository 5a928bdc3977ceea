// Products of test weights, and what they should be.
#pragma once

#include <cstdint>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

// `cols`, or as many more as make whole blocks.
inline int64_t Columns(DType dtype, int64_t cols) {
  int64_t block = Info(dtype).block_elements;
  return (cols + block - 1) / block * block;
}

// The element of a product of row t of x and row r of w, in double precision.
inline double Expected(const Matrix& x, const TestWeight& w, int64_t t, int64_t r) {
  double sum = 0;
  for (int64_t k = 0; k < w.cols; ++k) {
    sum += static_cast<double>(x(t, k)) * w.decoded[static_cast<size_t>(r * w.cols + k)];
  }
  return sum;
}

inline Matrix Multiply(Device& device, const PackedWeight& weight, Tensor x, int64_t pad = 0) {
  Matrix out(x.rows, weight.rows, pad);
  REQUIRE(device
              .Run([&](Ops& ops) {
                LinearArgs args;
                args.x = x;
                args.weight = &weight;
                args.out = out.tensor();
                ops.Linear(args);
              })
              .ok());
  return out;
}

}  // namespace heddle::kernels::test
