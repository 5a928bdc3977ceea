// How a thread's registers for tiles of matrices (Intel AMX) are set up: a plain type, for kernels
// that set them up and their callers, who see to it that they are released (registers_in_use.h).
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {

struct TileRegisters {
  int32_t rows = 0;  // of tiles of activations; 0: not set up
};

}  // namespace heddle::kernels::cpu
