// Peak rates of a GPU, measured on the device itself.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/cuda/device_step.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace heddle::kernels::cuda {

// Measures a copy of 1 GiB (bytes read and written; smaller ones stay partly in the L2) and a BF16
// product of 8192 x 8192 x 8192 random numbers, by `library` or, if that is nullptr, by our own
// kernel. Blocks for some 400 ms. It takes 2 GiB for that time, or a 32nd of a smaller device's
// memory; where that cannot be had, smaller ones in the workspace, which is overwritten.
absl::StatusOr<DeviceLimits> MeasureLimits(Runtime& runtime, const Workspace& workspace,
                                           LibraryMatmul* library);

}  // namespace heddle::kernels::cuda
