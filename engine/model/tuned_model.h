// Which model a tune profile was measured with, in words: what the times of its steps depend on.
// Pure functions.
//
// Two models with the same words take equally long: a fine-tuned model is the same here as what it
// was made of. What is left out changes times by little (norms, biases, rotations, activations).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/model/model_spec.h"
#include "kernels/dtype.h"

namespace heddle::engine {

// Text like "2048 wide, 32000 tokens, 22 layers of 32/4 heads of 64 and 5632 features; weights
// q4_0, keys bf16". Layers of several kinds are counted by kind, in the order in which kinds first
// appear. `spec` is that of the whole model, `weights` the format of most of its weight bytes.
std::string TunedModelText(const ModelSpec& spec, std::string_view weights,
                           kernels::DType kv_dtype);

// INVALID_ARGUMENT if the profile was measured with another model than `found`; an empty `measured`
// says nothing, and fits.
absl::Status CheckTunedModel(std::string_view measured, std::string_view found);

}  // namespace heddle::engine
