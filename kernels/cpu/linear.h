// The linear op of the CPU backend: prepares rows of x as tiles, then walks panels of the weight.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// `scratch` holds the prepared tiles, one per TileKind.
void Linear(const LinearArgs& args, const LinearKernels& kernels, ThreadPool& pool,
            Scratch (&scratch)[kNumTileKinds]);

}  // namespace heddle::kernels::cpu
