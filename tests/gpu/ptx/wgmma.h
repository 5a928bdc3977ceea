// Matrix products of warpgroups: ISA 9.7.15 "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions". Each warp multiplies the 16 rows of M that its registers hold,
// so that the four warps need not meet.
#pragma once

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// Called by BindMatrix; nullptr: not wgmma, or a form that is not known.
Run BindWgmma(Kernel& kernel, Instruction& instruction);

}  // namespace heddle::ptx
