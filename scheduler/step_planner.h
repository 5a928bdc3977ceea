// Makes a plan. The order matters: decodes take their tokens first; admission sees what the running
// sequences will need; pages are given out last, in the order of service, so that preemption only
// hits sequences that have got nothing yet in this step.
//
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>

#include "engine/step.h"
#include "scheduler/admission.h"
#include "scheduler/flight.h"
#include "scheduler/planned_step.h"
#include "scheduler/scheduler_parts.h"

namespace heddle::scheduler {

class StepPlanner {
 public:
  // `admission` must outlive it.
  StepPlanner(const SchedulerParts& parts, Admission* admission)
      : parts_(parts), admission_(*admission) {}

  // Overwrites *plan, except its step and `ended`, and *flight with the next step. `is_ahead`:
  // nobody may be preempted, because the last tokens of running sequences are not known.
  void Plan(int64_t now_us, bool is_ahead, engine::StepPlan* plan, Flight* flight);

  // For the next Plan only.
  void SetAhead(const AheadWish& wish) { step_.ahead = wish; }

  // Whether the running sequences' next rows fit into the pool without preempting any of them.
  bool FitsWithoutPreemption();

  // The decisions of the last Plan.
  const PlannedStep& step() const { return step_; }

 private:
  void DropPassed();
  void DropPassed(Sequence* sequence, int32_t group);
  void ChooseClients();
  void ListRunning();
  int32_t PromptBudget(int64_t streams);
  void PrepareAdapters();
  void TakeWholePrompts();
  void SharePrompts(int32_t budget);
  int32_t AssignRows(int32_t budget);
  int32_t AssignPages();
  bool HasRows() const;
  int32_t FitDrafts(int32_t reserved);
  int32_t MaxAhead(const Sequence& sequence) const;
  void FitAhead(int32_t pages);
  void TakeAhead(engine::StepPlan* plan);
  void GiveBackAhead(uint64_t step);
  int32_t FitPages(Sequence* sequence, size_t index, int32_t reserved);
  int32_t FitWorkers(size_t first, size_t last, int32_t reserved);
  void Write(engine::StepPlan* plan, Flight* flight);
  void WriteAdapters(engine::StepPlan* plan);
  void WriteSequence(Sequence* sequence, engine::StepPlan* plan, Flight* flight);
  void WriteFork(Sequence* carrier, int32_t row, engine::StepPlan* plan, Flight* flight);
  void WriteDraw(Sequence* sequence, int32_t row, engine::StepPlan* plan, Flight* flight);
  void CountRows(const Sequence& sequence, Flight* flight);

  const SchedulerParts parts_;
  Admission& admission_;
  PlannedStep step_;
};

}  // namespace heddle::scheduler
