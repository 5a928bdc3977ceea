// Ops::Recurrence of RecurrenceRule::kSelective on the CPU: the convolution, a loop over rows and
// channels, or the scan, a loop over blocks of channels, each of which passes over its sequence's
// rows one by one. A row's bits depend on its sequence alone.
// Thread-safety: one call at a time per pool.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/recurrence_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// As kernels/cpu/recurrence.h has it. REQUIRES: args.shape.is_selective().
void SelectiveScan(const HostBatch& batch, const RecurrenceArgs& args,
                   const RecurrenceKernels& kernels, ThreadPool& pool, Scratch& scratch);

}  // namespace heddle::kernels::cpu
