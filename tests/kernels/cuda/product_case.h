// One matrix product of many rows on the emulated device, against the reference.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace heddle::kernels::test {

struct ProductCase {
  int64_t n = 33, cols = 256, rows = 70;
  DType weight = DType::kQ4_0;
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  bool bias = false;
  bool out_f32 = true;
  int64_t out_pad = 0;  // 0 and 4: outputs are stored four at a time, else one by one
  int64_t workspace_bytes = int64_t{4} << 20;
  bool row_scaled = false, tile_scaled = false;
  int times = 1;
};

// The values are those of weights rounded to BF16: they agree with those up to the order of sums in
// F32, and with the exact weights up to that rounding. Kernels for few rows do not round weights.
void CheckProduct(const ProductCase& c, bool rounds_weights = true);

}  // namespace heddle::kernels::test
