// Beam search over the probabilities of next tokens: of all ways to go on with the beams, the
// `width` with the highest sum of log-probabilities are kept at each step. What ends with a stop
// token is set aside, and does not count among them. The best answers are those with the highest
// sum / length^length_penalty.
//
// It ends when no beam can become better than the answers that have ended, so that the result is
// that of going on to the end.
// Pure: knows no engine. Thread-safety: none.
// Source: vLLM's beam search, of which the fields have their names; Wu et al., "Google's Neural
// Machine Translation System", 2016 (the normalisation by length).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_result.h"

namespace heddle::server {

class BeamSearch {
 public:
  struct Options {
    int32_t width = 1;
    double length_penalty = 1.0;
    int32_t min_tokens = 0;  // no answer ends before
    int32_t max_tokens = 1;  // at least 1
    std::vector<engine::TokenId> stop_tokens;
  };
  struct Beam {
    std::vector<engine::SampledToken> tokens;  // the stop token included
    double sum_logprob = 0;
    size_t parent = 0;     // of the beams before the last step, the one that it goes on with
    bool stopped = false;  // by a stop token
  };

  explicit BeamSearch(Options options);

  // Alternatives that a step has to bring for each beam: enough for `width` that do not end.
  int32_t num_alternatives() const {
    return options_.width + static_cast<int32_t>(options_.stop_tokens.size());
  }
  // Those to go on with: one at first, then `width`.
  std::span<const Beam> beams() const { return beams_; }
  // Takes one step: `next[b]` are the likeliest tokens behind beam b, likeliest first.
  // REQUIRES: !done(), and one list for each beam.
  void Advance(std::span<const std::vector<engine::TokenLogprob>> next);
  bool done() const { return beams_.empty(); }

  // The best answers, best first: at most `count`.
  std::vector<Beam> Best(size_t count) const;

 private:
  double Score(const Beam& beam) const;
  double Bound(const Beam& beam) const;
  bool IsStop(engine::TokenId token) const;

  const Options options_;
  std::vector<Beam> beams_;
  std::vector<Beam> ended_;  // the best `width`, best first
};

}  // namespace heddle::server
