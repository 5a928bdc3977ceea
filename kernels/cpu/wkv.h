// Ops::TokenShift and Ops::TimeMix on the CPU, by an instruction set's kernels (wkv_table.h).
// Arguments, shapes and arithmetic are those of kernels/wkv.h. Of a time mix each thread takes the
// rows of a sequence in one head at a time, from their mixing to their output, so that the state
// stays in its cache and working memory does not grow with the rows.
//
// `batch` is that of the snapshots' group (HostBatch::OfGroup). `scratch` is the op's own: the
// slices, and for each thread an S and what it takes in of 16 rows. It is taken anew in each call,
// so that one scratch serves both ops. Nothing else is allocated, and nothing is kept of the
// arguments.
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
