// The grid of kernels that have a thread for each element of a tensor.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/tape.h"

namespace heddle::kernels::cuda {

// BlockX: a row. BlockY: `threads` of its columns. REQUIRES: rows and cols > 0. A step may have a
// million rows, and no grid has more than 65,535 blocks along y or z.
inline LaunchShape RowsShape(int64_t rows, int64_t cols, int threads) {
  return {.grid_x = static_cast<int>(rows),
          .grid_y = static_cast<int>((cols + threads - 1) / threads),
          .threads = threads};
}

}  // namespace heddle::kernels::cuda
