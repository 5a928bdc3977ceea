#include "scheduler/simulation/timeline.h"

#include <algorithm>

namespace heddle::scheduler {
namespace {

// The first interval covers a few steps of a fast machine; it is doubled as often as needed.
constexpr double kFirstIntervalUs = 1000;

// The results of a step belong to the last interval in which it ran.
constexpr double kInstantUs = 1e-3;

void AddWeighted(const LoadState& state, double weight, LoadState* sum) {
  sum->pages_used += state.pages_used * weight;
  sum->pages_cached += state.pages_cached * weight;
  sum->running += state.running * weight;
  sum->waiting += state.waiting * weight;
}

void Scale(double factor, LoadState* state) {
  const LoadState value = *state;
  *state = {};
  AddWeighted(value, factor, state);
}

}  // namespace

Timeline::Timeline(int max_intervals)
    : max_intervals_(static_cast<size_t>(max_intervals)), interval_us_(kFirstIntervalUs) {
  intervals_.reserve(max_intervals_);
}

Interval& Timeline::At(double us) {
  while (us >= interval_us_ * static_cast<double>(max_intervals_)) Halve();
  const auto index = static_cast<size_t>(us / interval_us_);
  if (index >= intervals_.size()) intervals_.resize(index + 1);
  return intervals_[index];
}

void Timeline::Halve() {
  for (size_t i = 0; 2 * i < intervals_.size(); ++i) {
    Interval joined = intervals_[2 * i];
    const Interval second = 2 * i + 1 < intervals_.size() ? intervals_[2 * i + 1] : Interval{};
    Scale(0.5, &joined.sum);
    AddWeighted(second.sum, 0.5, &joined.sum);
    joined.most_pages = std::max(joined.most_pages, second.most_pages);
    joined.busy_us += second.busy_us;
    joined.tokens += second.tokens;
    joined.prompt_rows += second.prompt_rows;
    intervals_[i] = joined;
  }
  intervals_.resize((intervals_.size() + 1) / 2);
  interval_us_ *= 2;
}

void Timeline::Pass(double begin_us, double end_us, const LoadState& state, bool busy) {
  end_us_ = std::max(end_us_, end_us);
  At(std::max(begin_us, end_us - kInstantUs));  // no interval grows while the loop goes over them
  for (double at = begin_us; at < end_us;) {
    Interval& interval = At(at);
    const double border = interval_us_ * (static_cast<double>(&interval - intervals_.data()) + 1.0);
    const double until = std::min(border, end_us);
    AddWeighted(state, (until - at) / interval_us_, &interval.sum);
    interval.most_pages = std::max(interval.most_pages, state.pages_used);
    if (busy) interval.busy_us += until - at;
    at = until;
  }
}

void Timeline::AddTokens(double at_us, int64_t tokens, int64_t prompt_rows) {
  Interval& interval = At(std::max(0.0, at_us - kInstantUs));
  interval.tokens += tokens;
  interval.prompt_rows += prompt_rows;
}

double Timeline::LengthUs(size_t index) const {
  return std::clamp(end_us_ - interval_us_ * static_cast<double>(index), 0.0, interval_us_);
}

LoadState Timeline::Mean(size_t index) const {
  LoadState mean = intervals_[index].sum;
  if (const double length = LengthUs(index); length > 0) Scale(interval_us_ / length, &mean);
  return mean;
}

}  // namespace heddle::scheduler
