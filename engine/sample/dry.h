// DRY ("don't repeat yourself"): which tokens would go on with a repetition of what stands at the
// end of a sequence, and what each of them is charged.
//
// Where the last n tokens also stand earlier, the token that follows them there would make the
// repetition longer. Its logit is lowered by multiplier * base^(n - allowed_length) for the longest
// such n that is at least allowed_length. Only what stands behind the last sequence breaker counts
// as the end, and of the whole sequence, the prompt included, the last dry_penalty_last_n tokens.
// A token that is a breaker by itself is never charged.
// Source: the arithmetic of llama.cpp's sampler of this name (src/llama-sampling.cpp).
//
// Cost: linear in the prompt once (the Z algorithm on the reversed text); then each token and each
// draw take time in proportion to how often the last token stands in the window, since a match can
// end nowhere else. Of 32,768 tokens (one core of an AMD EPYC): 1 ms once, then 2 us a token
// where words are as frequent as in texts (Zipf), and 0.15 ms, the most there is, where one token
// is repeated. Memory: 8 bytes for each token, some 16 for each distinct one.
// Thread-safety: none; owned by SamplerState.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/step.h"
#include "kernels/sample.h"

namespace heddle::engine {

class Dry {
 public:
  // REQUIRES: params.has_dry().
  Dry(const SamplingParams& params, std::span<const TokenId> prompt);

  // Counts a token that was generated.
  void Append(TokenId token);

  // Appends an edit for each token that is charged, in no order, one for each.
  void AddEdits(std::vector<kernels::LogitEdit>* edits) const;

 private:
  // The `length` tokens up to and with place `end` are the sequence's last.
  struct Match {
    int32_t end;
    int32_t length;
  };

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t WindowBegin() const;
  void Link(TokenId token);
  void MatchAll();
  void FindBreaker(int32_t end);
  bool IsBreaker(TokenId token) const;
  float Charge(int32_t length) const;

  float multiplier_;
  float base_;
  int32_t allowed_length_;
  int32_t window_;  // tokens that are looked at; -1: all
  std::vector<DryBreaker> breakers_;
  std::vector<TokenId> tokens_;  // the part of the prompt in the window, and all since
  std::vector<int32_t>
      previous_;  // [size()] the place before at which the same token stands, or -1
  absl::flat_hash_map<TokenId, int32_t> last_;  // the last place of each token
  std::vector<Match> matches_;                  // latest end first
  std::vector<Match> old_matches_;              // reused
  // The latest breaker: where it begins, and the place of its last token; -1: none.
  int32_t breaker_begin_ = -1;
  int32_t breaker_end_ = -1;
};

}  // namespace heddle::engine
