// Includes neither CUDA nor Abseil, so that .cc and .cu files share it.
#pragma once

namespace heddle::kernels::cuda {

// 0 (kSuccess) if this program holds machine code for the calling thread's device; otherwise the
// runtime's error. It asks for one kernel: all are built for the same architectures.
int FindCode();

}  // namespace heddle::kernels::cuda
