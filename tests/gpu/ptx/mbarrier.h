// mbarrier objects in shared memory: ISA 9.7.13.15 "mbarrier".
#pragma once

#include <cstdint>

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// Called by BindAsync; nullptr: not an instruction on barriers, or one that is not known.
Run BindMbarrier(Kernel& kernel, Instruction& instruction);

// Whether an intact barrier is at `address` which bulk copies may signal; false after Fail.
bool CheckSignalled(Warp& warp, uint32_t address, int lane);

// complete-tx, which may end the phase. False after Fail.
bool CompleteTransaction(Warp& warp, uint32_t address, int32_t bytes, int lane);

// The warp's initialisations are ordered before what the async proxy does.
void FenceMbarriers(Warp& warp);

}  // namespace heddle::ptx
