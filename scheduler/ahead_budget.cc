#include "scheduler/ahead_budget.h"

#include <algorithm>
#include <cmath>

namespace heddle::scheduler {
namespace {

// Guessing must promise so much more tokens per time than a plain step: times and chances are
// estimates.
constexpr double kAheadMargin = 1.05;
// Before anything is known: so many guesses, each right with this chance.
constexpr int32_t kFirstTokens = 4;
constexpr double kFirstChance = 0.6;
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
  // What is not known of a place is taken from the one before.
  double chance = kFirstChance;
  for (size_t i = 0; i <= std::min(place, kPlaces - 1); ++i) {
    const Tally& tally = tallies_[i];
    chance = (tally.right + kGuessPrior * chance) / (tally.tried + kGuessPrior);
  }
  return std::min(chance, 0.99);
}

double AheadBudget::PassesUs(int32_t decodes, int32_t tokens) const {
  const auto rows = static_cast<int32_t>(std::lround(rows_per_chain_ * decodes));
  const double first_us = first_times_.PredictUs(std::max(1, rows));
  return first_us + (tokens - 1) * next_times_.PredictUs(decodes);
}

AheadWish AheadBudget::Choose(int32_t decodes, const StepTimes& times) {
  if (options_.max_tokens == 0 || account_.is_paused()) return {};
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
  const bool is_known = decodes > 0 && times.Knows(decodes) && PassesUs(decodes, 1) > 0 &&
                        next_times_.PredictUs(decodes) > 0;
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
  const double pass_us = next_times_.PredictUs(decodes) / decodes;
  wish.min_survival = static_cast<float>(
      std::clamp(kTrust * (row_us + pass_us) * best_rate, kLeastSurvival, kMostSurvival));
  return wish;
}

void AheadBudget::CountGuesses(size_t place, int32_t tried, int32_t right) {
  Tally& tally = tallies_[std::min(place, kPlaces - 1)];
  if (tally.tried > kGuessMemory) {
    tally.tried /= 2;
    tally.right /= 2;
  }
  tally.tried += tried;
  tally.right += right;
}

void AheadBudget::CountStep(const AheadStep& step) {
  if (options_.max_tokens == 0) return;
  account_.CountStep(step.plain_us);
  stats_.drafted_tokens += step.drafted;
  stats_.accepted_tokens += step.accepted;
  double passes_us = 0;
  double lent_us = 0;
  for (const engine::DraftPassTime& pass : step.passes) {
    const double us = static_cast<double>(pass.ns) / 1e3;
    passes_us += us;
    ++stats_.passes;
    if (us <= 0 || pass.rows < 1) continue;
    (pass.is_first ? first_times_ : next_times_).Observe(pass.rows, us);
    if (pass.is_first) lent_us = Lend(step, pass);
  }
  stats_.seconds += passes_us / 1e6;
  const double repaid_us = loan_us_ * kRepaidPerStep;
  loan_us_ += lent_us - repaid_us;
  passes_us += repaid_us - lent_us;
  if (step.plain_us <= 0 || (passes_us == 0 && step.drafted == 0)) return;
  const double token_us = step.plain_us / std::max(1, step.decodes);
  const double rows_us = step.us > 0 && step.drafted > 0 ? step.us - step.plain_us : 0;
  account_.Settle(step.accepted * token_us - rows_us - passes_us, step.plain_us);
}

// What the first pass took beyond one of as many sequences that have nothing to catch up with.
double AheadBudget::Lend(const AheadStep& step, const engine::DraftPassTime& first) {
  if (step.sequences < 1) return 0;
  const double rows = static_cast<double>(first.rows) / step.sequences;
  if (rows <= kMostUsualRows) {
    rows_per_chain_ += kNewestRows * (rows - rows_per_chain_);
    return 0;
  }
  const auto usual = static_cast<int32_t>(std::lround(rows_per_chain_ * step.sequences));
  const double usual_us = first_times_.PredictUs(std::max(1, usual));
  return std::max(0.0, static_cast<double>(first.ns) / 1e3 - usual_us);
}

AheadStats AheadBudget::stats() const {
  AheadStats stats = stats_;
  stats.times_off = account_.times_off();
  stats.is_off = account_.is_paused();
  return stats;
}

}  // namespace heddle::scheduler
