// The times of steps of a model on a machine: the roofline of named hardware, or measurements of
// `heddle bench --json`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model_spec.h"
#include "scheduler/simulation/step_time.h"
#include "server/simulation/hardware.h"
#include "server/simulation/profile.h"

namespace heddle::server {

// The properties of a model on which the times depend; `spec` must outlive it.
struct ModelCost {
  const engine::ModelSpec& spec;
  int64_t weight_bytes = 0;
  std::string weight_format;       // most weights' format, e.g. "q4_0"
  int64_t kv_bytes_per_token = 0;  // over all layers, as PlanCapacity counts them
};

// Times at the data sheet's rates: an upper bound that no server reaches.
scheduler::StepTimeModel PeakModel(const ModelCost& cost, const Hardware& hardware);

// Times at the shares of the data sheet's rates that real steps reach.
scheduler::StepTimeModel RooflineModel(const ModelCost& cost, const Hardware& hardware);

// Between machines, each with one rank.
struct NetworkLink {
  double latency_us = 0;  // of a message
  double gbit_s = 0;
};

// Times of a model that ranks share.
struct RanksModel {
  std::vector<scheduler::StepTimeModel> stages;  // of each stage of the pipeline, or the only one
  scheduler::LinkTimeModel link;                 // between stages
};

// Ranks of one machine have equal parts of its rates; with `network` each is a machine like
// `hardware`. The slowest rank of a stage decides, and those of a stage meet for two sums in each
// layer. `of_one`: PeakModel or RooflineModel. REQUIRES: ranks is not empty; they are the parts of
// one model, stage by stage.
RanksModel ModelOfRanks(std::span<const ModelCost> ranks, const Hardware& hardware,
                        const std::optional<NetworkLink>& network,
                        scheduler::StepTimeModel (*of_one)(const ModelCost&, const Hardware&));

// Tokens per second of one stream, without its attention.
double StreamTokS(const RanksModel& ranks);

// Times from measurements of the same model. The matrices' time for a number of rows is a measured
// step's, less its attention, which follows from bytes and operations at the rates measured with
// it.
// REQUIRES: profile is not empty.
scheduler::StepTimeModel MeasuredModel(const ModelCost& cost, std::span<const ProfilePoint> profile,
                                       int32_t max_batch_tokens);

}  // namespace heddle::server
