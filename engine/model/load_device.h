// Questions of the loader to a device: whether it runs a model's layers, and what it prefers where
// the user does not say. Part of load.cc. Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/capacity.h"
#include "engine/model/load.h"
#include "engine/model/model_spec.h"
#include "kernels/device.h"

namespace heddle::engine {

// In all of them `device` is nullptr for the host.

// The type of the KV cache. `weights`: the type of most weights once loaded. INVALID_ARGUMENT for
// an unknown name.
absl::StatusOr<kernels::DType> KvType(const LoadOptions& options, kernels::DType weights,
                                      const kernels::Device* device);

// Puts the device's sizes of steps in the place of those that are left to it (0). What is given
// bounds what is not.
void FillStepSize(const kernels::Device* device, CapacityOptions* capacity);

// The type that a matrix is packed as, whose columns may be stored in an order of their own: a
// device with memory of its own then has floats (kernels/cuda/linear/cuda_weight.h).
kernels::DType PackedAs(kernels::DType dtype, bool has_order, const kernels::Device* device);

// UNIMPLEMENTED for layers whose dimensions are beyond those that the device's ops take.
absl::Status CheckOpsFor(const ModelSpec& spec, const kernels::Device* device);

}  // namespace heddle::engine
