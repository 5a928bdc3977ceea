// Ops::TokenShift and Ops::TimeMix on the CPU, by an instruction set's kernels (wkv_table.h).
// Arguments, shapes and arithmetic are those of kernels/wkv.h. Rows are mixed, heads of sequences
// walked and rows finished in parallel; what later steps need is kept when all heads have been
// walked.
//
// `batch` is that of the snapshots' group (StepBatch::OfGroup). `scratch` is the op's own: 5 floats
// per row and channel, an S per thread and the slices, taken anew in each call, so that one scratch
// serves both ops. Nothing else is allocated, and nothing is kept of the arguments.
// Threads: called by the thread that runs the step, which works with those of `pool` and returns
// when all is written. A batch that breaks kernels/wkv.h's requirements is a bug: HEDDLE_CHECK.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/wkv_table.h"
#include "kernels/wkv.h"

namespace heddle::kernels::cpu {

void TokenShift(const HostBatch& batch, const TokenShiftArgs& args, const WkvKernels& kernels,
                ThreadPool& pool, Scratch& scratch);
void TimeMix(const HostBatch& batch, const WkvArgs& args, const WkvKernels& kernels,
             ThreadPool& pool, Scratch& scratch);

}  // namespace heddle::kernels::cpu
