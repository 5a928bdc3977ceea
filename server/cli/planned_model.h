// The common input of `simulate` and `plan`: a model described without its weights, the machine to
// plan for, and the limits that `serve` would start with there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/load.h"
#include "scheduler/simulation/step_time.h"
#include "server/loop/engine_loop.h"
#include "server/simulation/adapter_size.h"
#include "server/simulation/hardware.h"
#include "server/simulation/machine_model.h"

namespace heddle::server {

struct PlannedModel {
  std::string name;  // the path or the shape
  engine::ModelInfo model;
  Hardware hardware;
  scheduler::StepTimeModel machine;  // expected times, of stage 0 if there are several
  scheduler::StepTimeModel peak;     // times at the data sheet's rates, of stage 0
  std::vector<scheduler::StepTimeModel> later_stages;  // expected times of the others
  std::vector<scheduler::StepTimeModel> later_peaks;
  scheduler::LinkTimeModel link;       // between stages
  std::optional<NetworkLink> network;  // each rank is a machine
  bool meets_through_host = false;     // or a GPU that reads no other's memory
  // Page-locked memory of the host that GPUs of several machines meet through, of the rank that
  // takes most; 0: they do not.
  int64_t host_meeting_bytes = 0;
  bool is_measured = false;  // `machine` is from a profile
  // With several ranks: tokens per second of one stream, as planned and with one rank. 0: unknown,
  // because the ranks have memory of their own, or `machine` is measured, or the model does not fit
  // into one machine.
  double stream_tok_s = 0;
  double one_rank_tok_s = 0;
  EngineLoopOptions loop;
  scheduler::SchedulerOptions scheduler;
};

// Errors are those of DescribeModel (RESOURCE_EXHAUSTED: the model does not fit), FindHardware and
// ReadProfile.
absl::StatusOr<PlannedModel> PlanModel(const config::Config& config);

// Gives the scheduler slots for adapters, which the planned machine may not have been asked for,
// and their loads a time.
void PrepareForAdapters(PlannedModel* planned);
// The size of the adapters that --adapters and --adapter-rank plan for, and room for them in the
// scheduler's options. Empty without these options.
AdapterSize PlanAdapters(const config::Config& config, PlannedModel* planned);
int32_t AdapterRank(const config::Config& config);

// Lines for people: "model ...", "machine ...", "memory ..."; and "ranks ..." where several share
// the model.
std::string DescribePlanned(const PlannedModel& planned);

}  // namespace heddle::server
