// Drafts of running sequences, between the drafters (engine/draft/), the budget that gives them
// rows (scheduler/draft_budget.h) and the scheduler, which plans the rows and says what became of
// them.
//
// A sequence is shown to the drafters when a draft of it is wanted for the first time, and from
// then on all its tokens are: in the steps for which the budget wants no drafts they are only noted
// down, and shown when it wants one again. Nothing else is done in such steps.
// Thread-safety: none; owned by the engine loop.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/draft/drafter.h"
#include "engine/draft/network_drafter.h"
#include "engine/executor.h"
#include "engine/step.h"
#include "scheduler/ahead_budget.h"
#include "scheduler/catch_up.h"
#include "scheduler/draft_budget.h"
#include "scheduler/scheduler.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

class Speculation {
 public:
  struct Options {
    int32_t max_tokens = 16;  // of a draft
    int32_t vocab = 0;
    scheduler::DraftBudget::Options budget;
    scheduler::AheadBudget::Options ahead;  // of the drafter beside the model, if there is one
    bool ignores_cost = false;              // drafts get all the rows that they want: for tests
  };
  // `network`: part of `drafter`, what proposes for the drafter beside the model; or null.
  Speculation(std::unique_ptr<engine::Drafter> drafter, const Options& options,
              engine::NetworkDrafter* network = nullptr);

  // Whether the next plan should wait for the tokens of the steps in flight, so that the drafters
  // can go on from them: now and then, and as long as they have something to propose.
  bool WantsTokens() const;

  // Has the drafters propose, and offers the next plan what the budget gives them.
  void Offer(scheduler::Scheduler* scheduler);

  // Takes the result of a committed step, or of a cancellation. REQUIRES: every event once, in
  // order, before the next Offer. `result` is that of the step.
  void TakeEvent(const scheduler::SequenceEvent& event, const engine::StepResult& result);

  // A step that took `us` is done, the passes of the drafter beside the model included (0: the time
  // says nothing), and its events are `events`.
  void CountStep(const engine::StepPlan& plan, const engine::StepResult& result,
                 std::span<const scheduler::SequenceEvent> events, double us);

  // Whether a drafter runs beside the model. Then the step's events come before CountStep.
  bool has_network() const { return network_ != nullptr; }
  scheduler::DraftBudgetStats stats() const { return budget_.stats(); }
  engine::DrafterCounts counts() const { return drafter_->counts(); }
  scheduler::AheadStats ahead_stats() const { return ahead_.stats(); }

 private:
  // The chain that is proposed for a candidate.
  struct Proposal {
    std::vector<engine::TokenId> tokens;
    std::vector<float> survival;
  };

  void Ask(scheduler::Scheduler* scheduler);
  void AskAhead(scheduler::Scheduler* scheduler);
  bool Begin(size_t i);
  bool ShowSome(size_t i, engine::SequenceId id);
  void ShowAll(engine::SequenceId id);
  void Propose(size_t i, Proposal* proposal);
  void CountAhead(const engine::StepPlan& plan, const engine::StepResult& result,
                  const scheduler::BookedStep& booked);
  bool FollowsText(engine::SequenceId id, const Proposal& proposal) const;
  void TakeChain(const scheduler::DraftLimits& limits, Proposal* proposal) const;

  const Options options_;
  std::unique_ptr<engine::Drafter> drafter_;
  scheduler::DraftBudget budget_;
  scheduler::CatchUp catch_up_;
  engine::NetworkDrafter* const network_;  // part of drafter_; null: there is none
  scheduler::AheadBudget ahead_;
  // The network's guesses behind the last step.
  struct Guesses {
    std::vector<engine::TokenId> tokens;
    std::vector<float> probabilities;
  };
  absl::flat_hash_map<engine::SequenceId, Guesses> guesses_;
  // Tokens of begun sequences that the drafters have not been shown yet.
  absl::flat_hash_map<engine::SequenceId, std::vector<engine::TokenId>> unshown_;
  int64_t plans_since_asked_ = 0;  // the drafters
  bool had_rows_ = false;          // the last Offer gave a draft rows
  double asked_us_ = 0;            // that drafters took since a step was counted
  int32_t last_prompt_rows_ = 0;   // of the step that was counted last
  // Scratch, whose memory is kept.
  std::vector<scheduler::DraftCandidate> candidates_;
  std::vector<Proposal> proposals_;
  std::vector<scheduler::DraftOffer> offers_;
  engine::DraftTree tree_;
};

// The speculation of a loop; null: nothing is drafted.
std::unique_ptr<Speculation> MakeSpeculation(const scheduler::SchedulerOptions& scheduler,
                                             const SpeculationOptions& options,
                                             const engine::ExecutorLimits& limits);

}  // namespace heddle::server
