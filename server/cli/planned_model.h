// What `simulate` and `plan` start from: a model described without its weights, the machine to
// plan for, and the limits that `serve` would start with there.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/load.h"
#include "scheduler/simulation/step_time.h"
#include "server/loop/engine_loop.h"
#include "server/simulation/hardware.h"

namespace heddle::server {

struct PlannedModel {
  std::string name;           // the path or the shape
  engine::LoadedModel model;  // without executor
  Hardware hardware;
  scheduler::StepTimeModel machine;  // what to expect
  scheduler::StepTimeModel peak;     // what the data sheet allows
  bool is_measured = false;          // `machine` is from a profile
  EngineLoopOptions loop;
  scheduler::SchedulerOptions scheduler;
};

// Errors as DescribeModel (RESOURCE_EXHAUSTED: the model does not fit), FindHardware, ReadProfile.
absl::StatusOr<PlannedModel> PlanModel(const config::Config& config);

// "model ...", "machine ...", "memory ...": lines for people.
std::string DescribePlanned(const PlannedModel& planned);

}  // namespace heddle::server
