// A product and a sum with one rounding, where the bits of a result must not depend on what a
// compiler fuses: sources that need that are compiled without fusion (sources.cmake) and say where
// they want it.
#pragma once

#include <cmath>

#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// a * b + c.
HEDDLE_DEVICE float Fma(float a, float b, float c) { return fmaf(a, b, c); }

}  // namespace heddle::kernels::cuda
