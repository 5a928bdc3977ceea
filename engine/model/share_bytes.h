// The bytes that a rank's share of a checkpoint takes, without reading the weights: LoadWeights
// (engine/model/weights.h) packs exactly these matrices and vectors.
//
// Thread-safety: pure function.
#pragma once

#include <cstdint>

#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/quantize.h"
#include "engine/parallel/shard.h"
#include "kernels/device.h"

namespace heddle::engine {

// Bytes of all matrices and vectors of `share`, matrices as `device` packs them (nullptr: the
// host), without the padding of its layouts. O(tensors). REQUIRES: ValidateTensors was OK.
int64_t ShareBytes(const Checkpoint& checkpoint, const ModelDescription& model,
                   const WeightPolicy& policy, const Share& share, const kernels::Device* device);

}  // namespace heddle::engine
