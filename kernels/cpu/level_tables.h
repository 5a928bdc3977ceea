// The kernels of a level: those that its own sources have, and for the rest those of a lower one.
#pragma once

#include "kernels/cpu/cpuid.h"
#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {

// REQUIRES: a level that this program was built for. The tables live as long as the program.
KernelTable TableFor(Isa isa);

}  // namespace heddle::kernels::cpu
