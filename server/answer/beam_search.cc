#include "server/answer/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace heddle::server {

BeamSearch::BeamSearch(Options options) : options_(std::move(options)), beams_(1) {}

double BeamSearch::Score(const Beam& beam) const {
  const auto length = static_cast<double>(std::max<size_t>(1, beam.tokens.size()));
  return beam.sum_logprob / std::pow(length, options_.length_penalty);
}

// The best score that a beam can reach: sums only fall, and a penalty on length makes the longest
// answer, without it the next one, the most that a falling sum is divided by.
double BeamSearch::Bound(const Beam& beam) const {
  const double next = static_cast<double>(beam.tokens.size() + 1);
  const double length = options_.length_penalty > 0 ? options_.max_tokens : next;
  return beam.sum_logprob / std::pow(length, options_.length_penalty);
}

bool BeamSearch::IsStop(engine::TokenId token) const {
  const auto& stops = options_.stop_tokens;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

void BeamSearch::Advance(std::span<const std::vector<engine::TokenLogprob>> next) {
  struct Candidate {
    size_t parent;
    engine::TokenLogprob token;
    double sum;
  };
  std::vector<Candidate> candidates;
  for (size_t b = 0; b < beams_.size(); ++b) {
    for (const engine::TokenLogprob& token : next[b]) {
      candidates.push_back({b, token, beams_[b].sum_logprob + token.logprob});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.sum > b.sum; });
  const auto width = static_cast<size_t>(options_.width);
  std::vector<Beam> beams;
  for (const Candidate& candidate : candidates) {
    if (beams.size() == width) break;
    const Beam& parent = beams_[candidate.parent];
    const bool stops = IsStop(candidate.token.token);
    const auto length = static_cast<int32_t>(parent.tokens.size()) + 1;
    if (stops && length <= options_.min_tokens) continue;
    Beam beam{parent.tokens, candidate.sum, candidate.parent, stops};
    beam.tokens.push_back({candidate.token.token, candidate.token.logprob, next[candidate.parent]});
    (stops ? ended_ : beams).push_back(std::move(beam));
  }
  beams_ = std::move(beams);
  const bool at_end =
      !beams_.empty() && static_cast<int32_t>(beams_[0].tokens.size()) >= options_.max_tokens;
  if (at_end) {
    std::move(beams_.begin(), beams_.end(), std::back_inserter(ended_));
    beams_.clear();
  }
  std::stable_sort(ended_.begin(), ended_.end(),
                   [this](const Beam& a, const Beam& b) { return Score(a) > Score(b); });
  if (ended_.size() > width) ended_.resize(width);
  if (ended_.size() < width) return;
  const double worst = Score(ended_.back());
  const bool is_settled = std::all_of(beams_.begin(), beams_.end(),
                                      [&](const Beam& beam) { return Bound(beam) <= worst; });
  if (is_settled) beams_.clear();
}

std::vector<BeamSearch::Beam> BeamSearch::Best(size_t count) const {
  std::vector<Beam> best(
      ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(std::min(count, ended_.size())));
  return best;
}

}  // namespace heddle::server
