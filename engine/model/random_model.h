// Models that need no download: the shapes of well-known ones with random weights. They are for
// benchmarks and capacity planning, never for text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "kernels/device.h"

namespace heddle::engine {

// The spec of a built-in shape, e.g. "tinyllama-1.1b". NOT_FOUND lists the names.
absl::StatusOr<ModelSpec> KnownShape(std::string_view name);
std::vector<std::string_view> KnownShapeNames();

// The format of random weights by name, e.g. "q4_0"; auto, int8 and int4 mean the same as for
// --weights (with BF16 in place of a checkpoint's own). INVALID_ARGUMENT lists the names.
absl::StatusOr<kernels::DType> RandomFormat(std::string_view name);

// Weights with the dimensions of `spec`: matrices of type `dtype` (embeddings and heads as the
// loader keeps them beside such matrices: Q8_0 beside Q4_0, BF16 beside FP8, MXFP4 and NVFP4) from
// a counter-based generator (same seed, same weights; about unit variance after each layer), norms
// of ones, biases of zeros. A layer's experts are made at once, beside their packed form. Fails as
// CheckWholeBlocks does. *made_seconds: the time for the numbers themselves.
absl::StatusOr<ModelWeights> RandomWeights(kernels::Device& device, const ModelSpec& spec,
                                           kernels::DType dtype, uint64_t seed,
                                           double* made_seconds = nullptr);

// INVALID_ARGUMENT, naming the width, unless rows of all matrices are whole blocks of `dtype`.
absl::Status CheckWholeBlocks(const ModelSpec& spec, kernels::DType dtype);

// Bytes of these weights as stored, or as `device` packs them. REQUIRES: CheckWholeBlocks is OK.
int64_t WeightBytes(const ModelSpec& spec, kernels::DType dtype,
                    const kernels::Device* device = nullptr);

}  // namespace heddle::engine
