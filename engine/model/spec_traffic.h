// What a forward asks of the machine, from a model's dimensions alone: for planning without the
// weights. weights.h has the same from loaded ones.
#pragma once

#include <cstdint>

#include "engine/model/model_spec.h"

namespace heddle::engine {

struct SpecTraffic {
  int64_t bytes = 0;           // that every step reads once: all matrices but those below
  int64_t expert_bytes = 0;    // of all experts together; a step reads those that it has rows for
  int64_t macs_per_token = 0;  // multiply-adds, without the head; top_k experts
  int64_t macs_per_logit_row = 0;
  // Of the layers that have experts (which agree in every published model). 0: none have.
  int32_t n_experts = 0;
  int32_t top_k = 0;
};

// `weight_bytes`: of the whole checkpoint; spread over the matrices by their elements, so that the
// bytes are exact where all matrices have one format and near where most have.
SpecTraffic TrafficOf(const ModelSpec& spec, int64_t weight_bytes);

}  // namespace heddle::engine
