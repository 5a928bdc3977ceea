// Going on behind a lost executor: everything is computed again.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace heddle::scheduler {

void Scheduler::ForgetPages(int64_t now_us, std::vector<StepNote>* notes) {
  TakeBackFlights();
  prefixes_.BeginStep();  // ends the holds of the last plan's swaps
  PlannedStep step;
  step.Begin(now_us);
  running_.EraseIf([](const Sequence* s) { return s->phase == Phase::kFinished; });
  running_has_finished_ = false;
  while (!running_.empty()) {
    Sequence* sequence = running_.back();
    running_.Erase(running_.back());
    // Rows of drafts and of tokens that were only expected are no positions of the sequence.
    const int32_t known = std::min(sequence->num_computed(), sequence->num_tokens());
    sequence->tables.Truncate(known, &pool_);
    admission_.Preempt(sequence, &step);
  }
  prefixes_.Clear();
  pool_.FreeHeld(step_ + 1);
  adapters_.CountDone(step_);  // no step has rows of any slot
  pool_.ForgetContents();
  Sweep();
  notes->assign(step.notes.begin(), step.notes.end());
}

// Undoes what the plans in flight have noted of what they would bring.
void Scheduler::TakeBackFlights() {
  for (int i = 0; i < flights_.size(); ++i) {
    for (const FlightSample& sample : flights_[i].samples) {
      sample.owner->num_expected = 0;
      sample.owner->is_awaited = false;
      sample.owner->num_drafted = 0;
    }
    for (const ScoreOwner& scores : flights_[i].score_owners) {
      scores.request->num_scored -= scores.count;
    }
    // Their prompts are to end in a later step, and nothing is drawn behind them.
    for (RequestState* request : flights_[i].prompts_only) request->forked = false;
  }
  flights_.Clear();
  has_drafts_ = false;
  // Sums of hidden states are lost as well.
  for (const auto& [id, state] : requests_) state->num_pooled = 0;
}

}  // namespace heddle::scheduler
