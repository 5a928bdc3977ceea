// Decides how many tokens a drafter with weights guesses ahead (engine/step.h, DraftAhead). Unlike
// a lookup in a text, each guess costs a pass of a network, and is paid before anybody knows
// whether the next step has rows for it.
//
// The number is that of most expected tokens per time, over the model's step and the drafter's
// passes, by the measured times of both and by how often guesses at each place were right. Where no
// number pays, one is tried now and then. What a drafter takes to catch up with a prompt is an
// investment, and charged over some dozen steps. An account (regret_account.h) of the drafter's own
// turns it off for a while where it does not pay for its passes; while it is off, the drafter does
// nothing.
//
// Unit: microseconds. Thread-safety: none; owned by the engine loop.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/fading_tally.h"
#include "engine/step.h"
#include "scheduler/draft_budget.h"
#include "scheduler/regret_account.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/step_times.h"

namespace heddle::scheduler {

// A step's times and counts of a drafter's guesses.
struct AheadStep {
  std::span<const engine::DraftPassTime> passes;  // behind the step
  int32_t sequences = 0;                          // that were guessed for, in those passes
  int32_t drafted = 0;                            // of the drafter's guesses, those it verified
  int32_t accepted = 0;                           // of these
  BookedStep booked;                              // the step itself, without the passes
};

struct AheadStats {
  int64_t passes = 0;
  double seconds = 0;  // of all passes
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  int64_t times_off = 0;
  bool is_off = false;
  bool has_failed = false;  // and is off for good
};

class AheadBudget {
 public:
  struct Options {
    int32_t max_tokens = 0;       // that the drafter guesses at most; 0: there is none
    bool reads_features = false;  // ExecutorLimits::drafter_reads_features
  };
  explicit AheadBudget(const Options& options) : options_(options) {}

  // Chooses what to ask for behind a step that draws for `decodes` sequences. `times` are the
  // model's.
  AheadWish Choose(int32_t decodes, const StepTimes& times);

  // Whether guesses may be offered to the model. Behind a start they are only compared with what it
  // draws (CountGuesses), so that a text that nobody can guess does not pay for rows.
  bool may_have_rows() const;

  // Counts guesses at `place` before which all were right: `right` of them were right, too.
  void CountGuesses(size_t place, int32_t tried, int32_t right);
  void CountStep(const AheadStep& step);
  // The drafter has turned itself off: nothing is asked of it any more.
  void TakeFailure() { stats_.has_failed = true; }
  AheadStats stats() const;

 private:
  static constexpr size_t kPlaces = 16;
  double Chance(size_t place) const;
  double PassesUs(int32_t decodes, int32_t tokens) const;
  double NextPassUs(int32_t decodes) const;
  AheadWish Best(int32_t decodes, const StepTimes& times) const;
  double Book(const AheadStep& step, const engine::DraftPassTime& pass);
  double UsualUs(const AheadStep& step, const engine::DraftPassTime& first);

  const Options options_;
  std::array<base::FadingTally, kPlaces> tallies_{};
  StepTimes first_times_, next_times_;  // of passes, by rows
  double rows_per_chain_ = 2;           // of first passes
  int64_t num_judged_ = 0;              // guesses at the first place
  double loan_us_ = 0;                  // of passes that caught up, not yet on the account
  int64_t since_asked_ = 0;             // steps since guesses were asked for
  int64_t next_trial_ = 0;              // the steps after which they are asked for in any case
  RegretAccount account_{{.first_steps = 1.5, .most_steps = 48, .recovered_steps = 8}};
  AheadStats stats_;
};

}  // namespace heddle::scheduler
