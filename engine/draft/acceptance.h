// Learns how far guesses can be trusted: the probability that a guessed token is right, by how long
// the match was that it came from. What was guessed last is compared with the tokens that came, so
// it learns from guesses that nobody verified, too.
//
// Thread-safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fading_tally.h"
#include "engine/draft/drafter.h"
#include "engine/ids.h"

namespace heddle::engine {

// Guesses and hits by length of match, of all sequences or of one. Old ones fade.
class Acceptance {
 public:
  static constexpr int kClasses = 7;  // matches of 0, 1, 2, 3-4, 5-8, 9-16, more tokens
  static int ClassOf(int32_t match_length);

  // A guess that was expected to be right with probability `share` before this calibration.
  void Count(int32_t match_length, float share, bool hit);

  // Factor for the shares of this class, in (0, 0.98]. `all`: experience that a new sequence
  // begins with; null: a guess by the length of the match.
  float Factor(int32_t match_length, const Acceptance* all) const;

 private:
  std::array<base::FadingTally, kClasses> tallies_;
};

// The last proposed chain of one sequence, and the sequence's own experience.
class ProposalRecord {
 public:
  // Puts the chain into *tree with survivals from `shares` and remembers it. `match_length` counts
  // the tokens that matched before the first proposed one.
  void Propose(std::span<const TokenId> tokens, std::span<const float> shares, int32_t match_length,
               const Acceptance& all, DraftTree* tree);

  // Compares the tokens that came with what was proposed for their places.
  void Learn(std::span<const TokenId> tokens, Acceptance* all);

 private:
  Acceptance own_;
  std::vector<TokenId> tokens_;
  std::vector<float> shares_;
  size_t num_known_ = 0;  // proposed tokens whose place has been filled; all were right
  int32_t match_length_ = 0;
};

// The sum of survivals: the tokens that a tree is expected to gain.
float ExpectedGain(const DraftTree& tree);

}  // namespace heddle::engine
