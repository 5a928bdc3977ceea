// The linear op of the CPU backend: prepares rows of x as tiles, then walks panels of the weight.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// Working memory that stays from call to call.
struct LinearScratch {
  Scratch tiles[kNumTileKinds];  // the prepared rows of x
  Scratch sums;                  // of each thread: one group of rows of one panel, or of two
};

void Linear(const LinearArgs& args, const LinearKernels& kernels, ThreadPool& pool,
            LinearScratch& scratch);

}  // namespace heddle::kernels::cpu
