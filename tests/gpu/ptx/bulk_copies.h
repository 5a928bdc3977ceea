// Copies of whole pieces of memory that one thread asks for: ISA 9.7.9.25.4 "Bulk copy" and
// 9.7.9.25.5 "Tensor copy"; and prefetches.
#pragma once

#include <cstdint>

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// Called by BindAsync; nullptr: not a bulk copy or prefetch, or one that is not known.
Run BindBulkCopy(Kernel& kernel, Instruction& instruction);
Run BindPrefetch(Kernel& kernel, Instruction& instruction);

// The number of boxes that all machines have copied so far.
int64_t TensorCopies();

}  // namespace heddle::ptx
