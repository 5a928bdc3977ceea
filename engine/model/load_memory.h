// The memory of a model that is being loaded: what its weights, pages and working memory take, on
// its device or on those of its ranks.
// Private to engine/model. Thread-safety: none; called by the thread that loads.
#pragma once

#include "absl/status/status.h"
#include "engine/model/load.h"
#include "kernels/device.h"

namespace heddle::engine {

// Fills kv_dtype and capacity from `loaded->model.spec` and the weights of `loaded->ranks`.
// `weights`: the type of most of them. `device` is where the model will run, or nullptr for the
// host. RESOURCE_EXHAUSTED: it does not fit; the message says what would. UNIMPLEMENTED: the device
// lacks the type of keys and values that `options` ask for.
absl::Status PlanMemory(kernels::DType weights, const LoadOptions& options,
                        const kernels::Device* device, ModelInfo* loaded);

// Gives loaded->executor a pool of the room that is left, now that its device, which has memory of
// its own, has shown what it takes for itself; fills loaded->capacity. RESOURCE_EXHAUSTED: that
// room cannot be had.
absl::Status FitPool(const LoadOptions& options, LocalModel* loaded);

// Adds to each rank of `loaded` what it takes of the pool in loaded->capacity; a drafter's part is
// the head's.
void DividePool(ModelInfo* loaded);

}  // namespace heddle::engine
