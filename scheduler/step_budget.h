// Chooses how much work a step takes on: the prompt rows beside the decodes such that running
// streams keep their pace. It also answers what follows from the same knowledge of the machine:
// what a page is worth, when moving it is faster than computing it, and how long a request is going
// to take.
//
// It learns from earlier steps (cost_model.h), from swaps and from the lengths of answers.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>

#include "scheduler/cost_model.h"
#include "scheduler/flight.h"
#include "scheduler/planned_step.h"
#include "scheduler/running_set.h"
#include "scheduler/scheduler_types.h"

namespace heddle::scheduler {

class StepBudget {
 public:
  // `options` must outlive it.
  explicit StepBudget(const SchedulerOptions& options) : options_(options) {}

  // Prompt rows beside the decodes of `step`, never negative. `expected_streams`: streams that run
  // or are going to run at the same time (kAutomaticTarget).
  int32_t PromptRows(const PlannedStep& step, const RunningSet& running,
                     int64_t expected_streams) const;

  // The prompt rows of a pipeline's step (pipeline.h): of chunks that take equally long, the next
  // one of a prompt with `context` positions. `prompts`: what the prompts that are being read or
  // wait cost, rows that are done included.
  int32_t ChunkRows(const StepCost& prompts, int64_t context) const;

  // The time to compute the depth-th page of a prefix (from 0); 1 for every page while it is
  // unknown.
  double PageUs(int32_t depth) const;
  // The time to load a page of an adapter, in the same unit.
  double AdapterPageUs() const;
  // Whether moving the depth-th page takes less time than computing it would.
  bool SwapPays(int32_t depth) const;
  // The time of a request from its first step to its last, if it ran beside the sequences of the
  // last step; 0: not known yet.
  int64_t EstimateWorkUs(const GenerationRequest& request) const;

  // The time of a step; 0 while it is unknown or has no rows.
  double PredictUs(const StepCost& cost) const {
    return cost.rows > 0 && cost_model_.is_ready() ? cost_model_.PredictUs(cost) : 0;
  }
  // The part of it that these rows add to a step that others have rows in, too.
  double AddedUs(const StepCost& cost) const {
    return cost.rows > 0 && cost_model_.is_ready() ? cost_model_.AddedUs(cost) : 0;
  }

  // Notes the cost of a planned step that has rows.
  void CountPlan(const StepCost& cost) { last_cost_ = cost; }
  // Learns from the oldest step in flight, which is done after `swap_us` of swapping. `fills`: it
  // was planned into an empty pipeline, and others behind it, so that it took the time of all
  // stages.
  void CountStep(const Flight& flight, bool fills, double swap_us, int64_t now_us);
  // Learns the length of a finished answer.
  void CountAnswer(size_t tokens);

 private:
  double StreamsAloneUs(const StepCost& decodes, int64_t streams) const;

  const SchedulerOptions& options_;
  CostModel cost_model_;
  StepCost last_cost_;             // the last planned step that has rows
  int64_t committed_us_ = 0;       // when the last step was done
  double swap_us_per_page_ = 0;    // running mean; 0: none yet
  double mean_answer_tokens_ = 0;  // running mean over finished sequences; 0: none yet
};

}  // namespace heddle::scheduler
