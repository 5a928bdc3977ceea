// Guesses that are to be verified by rejection sampling (kernels/sample.h), and the distributions
// that they were drawn from, until the model draws at their positions.
//
// The rule that keeps the model's distribution: if a token was guessed for a position, behind the
// very tokens that the sequence has before it, then the model's draw at that position verifies it,
// whether or not the guess has a row in the step. So it does not matter which guesses get rows,
// although that depends on how likely they are.
//
// Bounded in bytes: chains for which there is no room are not begun, and their guesses are drawn
// and verified in the other way (docs/decisions/0050). Thread-safety: none; owned by the executor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/ids.h"
#include "engine/model/chain_batch.h"
#include "engine/step.h"
#include "kernels/sample.h"

namespace heddle::engine {

class GuessShares {
 public:
  // Prepares the draw of the chain's next guess, so that the chain holds what it is drawn from. Its
  // random numbers are others than those of the draw that verifies it.
  static void BeginGuess(int32_t vocab, Chain* chain, kernels::SampleRowParams* row);

  // Whether there is room for a chain of so many guesses; if so, it is taken until Forget.
  bool Reserve(SequenceId id, int32_t num_guesses, int32_t vocab);

  // Takes over the chain's guesses, instead of those that the sequence had before.
  void Keep(Chain* chain);

  // Has the draw at the sample's position plus `drafted.size()`, behind these proposed tokens,
  // verify what was guessed there. The row points here, until the next call for this sequence.
  void AddProposal(const SampleRow& sample, std::span<const TokenId> drafted,
                   kernels::SampleRowParams* row) const;

  // The sequence has ended, or has no chain any more.
  void Forget(SequenceId id);

  int64_t bytes() const { return bytes_; }

  static constexpr int64_t kMaxBytes = int64_t{64} << 20;

 private:
  struct Guesses {
    Position first = 0;  // position of tokens[0]
    std::vector<TokenId> tokens;
    std::vector<std::vector<float>> shares;  // [tokens][vocab]
    int64_t bytes = 0;
  };
  absl::flat_hash_map<SequenceId, Guesses> guesses_;
  int64_t bytes_ = 0;  // of all
};

}  // namespace heddle::engine
