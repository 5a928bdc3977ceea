// The linear op of the CPU backend: prepares rows of x as tiles, then walks panels of the weight.
#pragma once

#include <vector>

#include "kernels/cpu/adapters.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// Working memory that stays from call to call.
struct LinearScratch {
  // The rows of x as a kind of segment wants them: in its order of columns, then as tiles.
  struct Input {
    Scratch ordered;
    Scratch tiles;
  };
  std::vector<Input> inputs;
  Scratch sums;      // of each thread: one group of rows of one panel, or of two
  Scratch expanded;  // of each thread: a stretch of a panel
};

// `adapters`: what they add, shrunk already; or nullptr.
void Linear(const LinearArgs& args, const LinearKernels& kernels, ThreadPool& pool,
            LinearScratch& scratch, const AdapterCall* adapters = nullptr);

}  // namespace heddle::kernels::cpu
