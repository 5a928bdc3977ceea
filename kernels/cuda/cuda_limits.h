// Peak rates of a GPU, measured on the device itself.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/cuda/device_step.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace heddle::kernels::cuda {

// Measures a large copy (bytes read and written) and a large BF16 product of random numbers, by
// `library` or, if that is nullptr, by our own kernel. Blocks for some 30 ms; overwrites the
// workspace.
absl::StatusOr<DeviceLimits> MeasureLimits(Runtime& runtime, const Workspace& workspace,
                                           LibraryMatmul* library);

}  // namespace heddle::kernels::cuda
