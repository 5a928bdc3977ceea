// Ops::Recurrence on the CPU. Rows pass the convolution, heads pass over their sequences' rows,
// rows are gated: three loops over the threads. A row's bits depend on its sequence and its place
// in pages alone. Thread-safety: one call at a time per pool.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/recurrence_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// `batch`: as the layers of args.cache.group see it. Keeps its memory in `scratch`.
void Recurrence(const HostBatch& batch, const RecurrenceArgs& args,
                const RecurrenceKernels& kernels, ThreadPool& pool, Scratch& scratch);

}  // namespace heddle::kernels::cpu
