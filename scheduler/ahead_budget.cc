#include "scheduler/ahead_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::scheduler {
namespace {

// Guessing must promise so much more tokens per time than a plain step: times and chances are
// estimates.
constexpr double kAheadMargin = 1.05;
// Before anything is known: so many guesses, each right with this chance.
constexpr int32_t kFirstTokens = 1;
constexpr double kFirstChance = 0.6;
// Guesses that are compared with what the model draws before any gets rows. They cost the passes of
// the network alone, and say as much as guesses with rows do.
constexpr int64_t kJudgedWithoutRows = 3;
// Guesses that are remembered per place, and how many of the first chance a place begins with.
constexpr double kGuessMemory = 128;
constexpr double kGuessPrior = 4;
// Weight of the newest step in the mean of rows per chain.
constexpr double kNewestRows = 1.0 / 16;
// A drafter's own probability is taken for what it is within this factor: a chain ends where even
// so much more would not pay.
constexpr double kTrust = 0.5;
constexpr double kLeastSurvival = 0.02;
constexpr double kMostSurvival = 0.5;

// Steps after which guesses are tried where none seem to pay; the number doubles up to the last.
constexpr int64_t kFirstTrial = 64;
constexpr int64_t kLastTrial = 2048;
// Positions that a drafter may have to catch up with in a probe.
constexpr int32_t kProbeCatchUp = 256;
// More rows per sequence than this are for catching up, and so much of what they cost is charged in
// each step.
constexpr double kMostUsualRows = 16;
constexpr double kRepaidPerStep = 1.0 / 32;

}  // namespace

double AheadBudget::Chance(size_t place) const {
  // A place of which nothing is known is taken to be like the one before.
  double chance = kFirstChance;
  for (size_t i = 0; i <= std::min(place, kPlaces - 1); ++i) {
    chance = tallies_[i].Rate(chance, kGuessPrior);
  }
  return std::min(chance, 0.99);
}

double AheadBudget::PassesUs(int32_t decodes, int32_t tokens) const {
  const auto rows = static_cast<int32_t>(std::lround(rows_per_chain_ * decodes));
  const double first_us = first_times_.PredictUs(std::max(1, rows));
  return first_us + (tokens - 1) * NextPassUs(decodes);
}

// A pass for a further guess; before there was one, it is like a first pass.
double AheadBudget::NextPassUs(int32_t decodes) const {
  const double us = next_times_.PredictUs(decodes);
  return us > 0 ? us : first_times_.PredictUs(decodes);
}

bool AheadBudget::may_have_rows() const {
  return num_judged_ >= kJudgedWithoutRows || account_.times_off() > 0;
}

AheadWish AheadBudget::Choose(int32_t decodes, const StepTimes& times) {
  if (options_.max_tokens == 0 || stats_.has_failed || account_.is_paused()) return {};
  AheadWish wish = Best(decodes, times);
  wish.feeds_drafter = options_.reads_features;
  if (account_.times_off() > 0 && !account_.has_recovered()) wish.max_catch_up = kProbeCatchUp;
  if (wish.tokens > 0) {
    next_trial_ = kFirstTrial;
    since_asked_ = 0;
  } else if (++since_asked_ > next_trial_) {
    next_trial_ = std::min(std::max(2 * next_trial_, kFirstTrial), kLastTrial);
    since_asked_ = 0;
    wish.tokens = std::min(kFirstTokens, options_.max_tokens);
  }
  return wish;
}

// The number of guesses that promises most tokens per time; 0: a plain step does.
AheadWish AheadBudget::Best(int32_t decodes, const StepTimes& times) const {
  AheadWish wish;
  const bool is_known = may_have_rows() && decodes > 0 && times.Knows(decodes) &&
                        PassesUs(decodes, 1) > 0 && NextPassUs(decodes) > 0;
  if (!is_known) {
    wish.tokens = std::min(kFirstTokens, options_.max_tokens);
    return wish;
  }
  const double plain_us = times.PredictUs(decodes);
  double best_rate = kAheadMargin * decodes / plain_us;
  double tokens = decodes;
  double survival = 1;
  for (int32_t count = 1; count <= options_.max_tokens; ++count) {
    survival *= Chance(static_cast<size_t>(count) - 1);
    tokens += decodes * survival;
    const double us = times.PredictUs(decodes * (1 + count)) + PassesUs(decodes, count);
    if (tokens / us <= best_rate) continue;
    best_rate = tokens / us;
    wish.tokens = count;
  }
  if (wish.tokens == 0) return wish;
  // One more guess costs a row of a pass and a row of the model.
  const double row_us =
      (times.PredictUs(decodes * (1 + wish.tokens)) - plain_us) / (decodes * wish.tokens);
  const double pass_us = NextPassUs(decodes) / decodes;
  wish.min_survival = static_cast<float>(
      std::clamp(kTrust * (row_us + pass_us) * best_rate, kLeastSurvival, kMostSurvival));
  return wish;
}

void AheadBudget::CountGuesses(size_t place, int32_t tried, int32_t right) {
  if (place == 0) num_judged_ += tried;
  tallies_[std::min(place, kPlaces - 1)].Add(tried, right, kGuessMemory);
}

void AheadBudget::CountStep(const AheadStep& step) {
  if (options_.max_tokens == 0) return;
  const BookedStep& booked = step.booked;
  account_.CountStep(booked.plain_us);
  stats_.drafted_tokens += step.drafted;
  stats_.accepted_tokens += step.accepted;
  const double repaid_us = loan_us_ * kRepaidPerStep;
  loan_us_ -= repaid_us;
  double passes_us = repaid_us;
  for (const engine::DraftPassTime& pass : step.passes) passes_us += Book(step, pass);
  if (booked.plain_us <= 0 || (passes_us == 0 && step.drafted == 0)) return;
  const bool has_rows = booked.us > 0 && step.drafted > 0;
  const double gained_us =
      has_rows ? booked.GainedUs(step.accepted) : step.accepted * booked.token_us;
  account_.Settle(gained_us - passes_us, booked.plain_us);
}

// Returns the time to book for the pass now: without what others held it up, and without the part
// of a first pass that catches up, which is lent.
double AheadBudget::Book(const AheadStep& step, const engine::DraftPassTime& pass) {
  const double us = static_cast<double>(pass.ns) / 1e3;
  ++stats_.passes;
  stats_.seconds += us / 1e6;
  if (us <= 0 || pass.rows < 1) return 0;
  if (!pass.is_first) return next_times_.Observe(pass.rows, us);
  const double booked_us = first_times_.Observe(pass.rows, us);
  const double usual_us = std::min(booked_us, UsualUs(step, pass));
  loan_us_ += booked_us - usual_us;
  return usual_us;
}

// Time of a first pass over as many sequences that have nothing to catch up with.
double AheadBudget::UsualUs(const AheadStep& step, const engine::DraftPassTime& first) {
  constexpr double kAllOfIt = std::numeric_limits<double>::infinity();
  if (step.sequences < 1) return kAllOfIt;
  const double rows = static_cast<double>(first.rows) / step.sequences;
  if (rows <= kMostUsualRows) {
    rows_per_chain_ += kNewestRows * (rows - rows_per_chain_);
    return kAllOfIt;
  }
  const auto usual = static_cast<int32_t>(std::lround(rows_per_chain_ * step.sequences));
  return first_times_.PredictUs(std::max(1, usual));
}

AheadStats AheadBudget::stats() const {
  AheadStats stats = stats_;
  stats.times_off = account_.times_off();
  stats.is_off = account_.is_paused();
  return stats;
}

}  // namespace heddle::scheduler
