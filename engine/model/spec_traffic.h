// The bytes and operations of a forward, computed from a model's dimensions alone, for planning
// without the weights. weights.h has the same for loaded weights.
#pragma once

#include <cstdint>

#include "engine/model/model_spec.h"

namespace heddle::engine {

// The first layer that runs for logit rows alone, where a step's batch lets it
// (kernels::Ops::EndsWithLogitRows); n_layers() if there is none. Ranks, stages, late blocks and
// further streams have rows of their own.
int32_t NarrowingLayer(const ModelSpec& spec);

struct SpecTraffic {
  int64_t bytes = 0;         // read once by every step: all matrices but those below
  int64_t expert_bytes = 0;  // all experts together; a step reads those that its rows use
  // Multiply-adds, with top_k experts, of the layers before NarrowingLayer.
  int64_t macs_per_token = 0;
  int64_t macs_per_logit_row = 0;  // of the head, and of the other layers
  // The experts of a layer, the same number in all such layers of every published model. 0: none.
  int32_t n_experts = 0;
  int32_t top_k = 0;
};

// `spec`: of a model or of a rank's part. `weight_bytes`: all of its bytes, distributed over the
// matrices by their elements; exact if all matrices have one format, and close if most have.
SpecTraffic TrafficOf(const ModelSpec& spec, int64_t weight_bytes);

}  // namespace heddle::engine
