// Ops::TokenShift and Ops::TimeMix on the CPU. Rows are mixed, heads of sequences walked and rows
// finished in parallel; what later steps need is kept when all heads have been walked.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/wkv_table.h"
#include "kernels/wkv.h"

namespace heddle::kernels::cpu {

void TokenShift(const HostBatch& batch, const TokenShiftArgs& args, const WkvKernels& kernels,
                ThreadPool& pool);
void TimeMix(const HostBatch& batch, const WkvArgs& args, const WkvKernels& kernels,
             ThreadPool& pool, Scratch& scratch);

}  // namespace heddle::kernels::cpu
