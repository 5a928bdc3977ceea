// From a model and a machine to the times of steps: the roofline of named hardware, or what
// `heddle bench --json` has measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/model/model_spec.h"
#include "scheduler/simulation/step_time.h"
#include "server/simulation/hardware.h"
#include "server/simulation/profile.h"

namespace heddle::server {

// What the times depend on of a model; `spec` must outlive it.
struct ModelCost {
  const engine::ModelSpec& spec;
  int64_t weight_bytes = 0;
  std::string weight_format;       // of most of them, e.g. "q4_0"
  int64_t kv_bytes_per_token = 0;  // of all layers, as PlanCapacity counts them
};

// As fast as the data sheet allows: an upper bound that no server reaches.
scheduler::StepTimeModel PeakModel(const ModelCost& cost, const Hardware& hardware);

// At the shares of the data sheet that real steps reach.
scheduler::StepTimeModel RooflineModel(const ModelCost& cost, const Hardware& hardware);

// From measurements of the same model. The matrices' time for so many rows is a measured step's
// less its attention, which follows from bytes and operations at the rates measured with it.
// REQUIRES: profile is not empty.
scheduler::StepTimeModel MeasuredModel(const ModelCost& cost, std::span<const ProfilePoint> profile,
                                       int32_t max_batch_tokens);

}  // namespace heddle::server
