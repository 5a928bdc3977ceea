#include "scheduler/draft_budget.h"

#include <algorithm>
#include <cmath>

namespace heddle::scheduler {
namespace {

// A step with drafts must promise so much more tokens per time than a plain one: times and survival
// are estimates.
constexpr double kMargin = 1.02;
// Every so many steps with drafts, one is run without, so that its time stays known; more often
// until it is, since everything else is compared with it.
constexpr int64_t kPlainEvery = 64;
constexpr int64_t kPlainEveryAtFirst = 4;
constexpr int32_t kKnownPlainSteps = 5;
// Plain steps before the first draft: the first one behind a prompt is slow.
constexpr int32_t kPlainAtFirst = 3;
// Steps have at most so many times the rows of the largest measured one: a guess that is wrong
// costs little.
constexpr int32_t kGrowthFactor = 2;
// Questions without rows after which the next ones are so many steps apart.
constexpr int32_t kVainQuestions = 32;
constexpr int32_t kSkippedSteps = 4;
// Expected hits that are remembered per place of a draft, and the weight of the drafter's word.
constexpr double kCalibrationMemory = 64;
constexpr double kCalibrationPrior = 4;
constexpr double kLargestFactor = 1.25;
constexpr double kLargestSurvival = 0.99;

}  // namespace

DraftedStep RowsOf(const engine::StepPlan& plan) {
  DraftedStep step;
  for (const engine::SequenceSlice& slice : plan.sequences) {
    if (slice.kind == engine::SliceKind::kPrompt) {
      step.rows.prompts += slice.num_tokens;
    } else {
      ++step.rows.decodes;
      step.drafted += slice.num_tokens - 1;
    }
  }
  return step;
}

int DraftBudget::PlaceOf(size_t index) {
  constexpr std::array<size_t, kPlaces - 1> kLargest = {0, 1, 2, 3, 5, 7, 11};
  return static_cast<int>(std::lower_bound(kLargest.begin(), kLargest.end(), index) -
                          kLargest.begin());
}

double DraftBudget::Calibrated(size_t index, double survival) const {
  const double factor =
      calibration_[static_cast<size_t>(PlaceOf(index))].Rate(1, kCalibrationPrior);
  return std::clamp(survival * std::min(factor, kLargestFactor), 0.0, kLargestSurvival);
}

void DraftBudget::Choose(const PlainRows& plain, std::span<DraftOffer> offers) {
  for (DraftOffer& offer : offers) offer.rows = 0;
  if (!wants_drafts() || plain.decodes < 1 || !times_.Knows(plain.decodes)) return;
  if (plain_steps_ < kPlainAtFirst) return;
  const size_t count = GiveRows(plain, offers);
  vain_ = count == 0 ? std::min(vain_ + 1, kVainQuestions) : 0;
  if (vain_ == kVainQuestions) skip_ = kSkippedSteps;
  for (size_t i = 0; i < count; ++i) ++offers[given_[i]].rows;
  for (const DraftOffer& offer : offers) {
    if (offer.rows == 0) continue;
    const auto used = offer.survival.first(static_cast<size_t>(offer.rows));
    offered_[offer.id].assign(used.begin(), used.end());
  }
}

// Takes nodes in the order of survival and returns how many of given_ make the best step: the
// tokens of the decodes and of the drafts, by the time of the decodes and of what drafts add. A
// chain's next node is in the heap only when the one above it was taken, so the order holds to it.
size_t DraftBudget::GiveRows(const PlainRows& plain, std::span<const DraftOffer> offers) {
  heap_.clear();
  given_.clear();
  for (uint32_t i = 0; i < offers.size(); ++i) {
    if (!offers[i].survival.empty()) {
      heap_.push_back({Calibrated(0, static_cast<double>(offers[i].survival[0])), i, 0});
    }
  }
  std::make_heap(heap_.begin(), heap_.end());
  const int32_t first_rows = plain.decodes + plain.prompts;
  const double decodes_us = times_.PredictUs(plain.decodes);
  const double first_us = times_.PredictUs(first_rows);
  const int32_t known = std::max(first_rows, times_.LargestKnown());
  int32_t most_rows = kGrowthFactor * known;
  if (options_.max_step_rows > 0) most_rows = std::min(most_rows, options_.max_step_rows);
  double tokens = plain.decodes;
  double best_rate = kMargin * tokens / decodes_us;
  size_t best = 0;
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Node node = heap_.back();
    heap_.pop_back();
    given_.push_back(node.offer);
    const int32_t rows = first_rows + static_cast<int32_t>(given_.size());
    const double us = times_.PredictUs(rows);
    const bool too_long = options_.target_us > 0 && us > std::max(options_.target_us, first_us);
    if (too_long || rows > most_rows) break;
    tokens += node.survival;
    const double rate = tokens / (us - first_us + decodes_us);
    if (rate > best_rate) {
      best_rate = rate;
      best = given_.size();
    }
    const std::span<const float> survival = offers[node.offer].survival;
    if (node.index + 1 == survival.size()) continue;
    const double next = Calibrated(node.index + 1, static_cast<double>(survival[node.index + 1]));
    heap_.push_back({std::min(next, node.survival), node.offer, node.index + 1});
    std::push_heap(heap_.begin(), heap_.end());
  }
  return best;
}

void DraftBudget::CountDraft(engine::SequenceId id, int32_t drafted, int32_t accepted) {
  ++stats_.drafts;
  stats_.drafted_tokens += drafted;
  stats_.accepted_tokens += accepted;
  for (int32_t i = 0; i < accepted; ++i) {
    ++stats_.accepted_at[std::min(static_cast<size_t>(i), stats_.accepted_at.size() - 1)];
  }
  const auto offered = offered_.find(id);
  if (offered != offered_.end()) Learn(offered->second, drafted, accepted);
}

void DraftBudget::Learn(std::span<const float> survival, int32_t drafted, int32_t accepted) {
  const size_t count = std::min(survival.size(), static_cast<size_t>(std::max(drafted, 0)));
  for (size_t i = 0; i < count; ++i) {
    const bool is_right = i < static_cast<size_t>(std::max(accepted, 0));
    calibration_[static_cast<size_t>(PlaceOf(i))].Add(static_cast<double>(survival[i]),
                                                      is_right ? 1 : 0, kCalibrationMemory);
  }
}

BookedStep DraftBudget::CountStep(const DraftedStep& step) {
  const int32_t plain_rows = step.rows.decodes + step.rows.prompts;
  if (plain_rows < 1) return {};
  BookedStep booked{.plain_us = times_.PredictUs(plain_rows)};
  if (step.rows.decodes > 0) {
    booked.token_us = times_.PredictUs(step.rows.decodes) / step.rows.decodes;
  }
  if (step.us > 0) booked.us = times_.Observe(plain_rows + step.drafted, step.us);
  if (skip_ > 0) --skip_;
  account_.CountStep(booked.plain_us);
  if (step.drafted == 0) {
    is_plain_turn_ = false;
    since_plain_ = 0;
    plain_steps_ = std::min(plain_steps_ + 1, kPlainAtFirst);
    if (step.asked_us > 0 && booked.plain_us > 0) Book(-step.asked_us, booked.plain_us);
    return booked;
  }
  const bool is_known = times_.NumMeasured(step.rows.decodes) >= kKnownPlainSteps;
  is_plain_turn_ = ++since_plain_ >= (is_known ? kPlainEvery : kPlainEveryAtFirst);
  if (booked.us <= 0 || booked.plain_us <= 0 || step.rows.decodes < 1) return booked;
  Book(booked.GainedUs(step.accepted), booked.plain_us);
  return booked;
}

void DraftBudget::Book(double gained_us, double plain_us) {
  stats_.gained_seconds += gained_us / 1e6;
  account_.Settle(gained_us, plain_us);
}

DraftBudgetStats DraftBudget::stats() const {
  DraftBudgetStats stats = stats_;
  stats.times_off = account_.times_off();
  stats.is_off = is_paused();
  return stats;
}

}  // namespace heddle::scheduler
