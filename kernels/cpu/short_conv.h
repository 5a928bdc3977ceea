// Ops::ShortConv on the CPU. A row is computed by one thread, in an order that depends on its
// position alone. Thread-safety: one call at a time per pool.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// `batch`: as the layers of args.cache.group see it. Keeps its memory in `scratch`.
void ShortConv(const HostBatch& batch, const ShortConvArgs& args, const RowKernels& rows,
               ThreadPool& pool, Scratch& scratch);

}  // namespace heddle::kernels::cpu
