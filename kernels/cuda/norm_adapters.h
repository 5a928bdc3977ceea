// The gains and biases that adapters add to norms, where kernels read them. Plain data, owned by
// the step that is launched with it.
#pragma once

#include <cstdint>

#include "kernels/adapters.h"

namespace heddle::kernels::cuda {

// The adapters of a norm's rows; factors == nullptr: none has one.
struct NormAdapters {
  const AdapterFactors* factors = nullptr;  // of slot s at [s * slot_stride]
  int32_t slot_stride = 0;
  const int32_t* slots = nullptr;  // [rows]
};

}  // namespace heddle::kernels::cuda
