// The tokens of one sequence, indexed when they are first searched. A long prompt enters the index
// bit by bit, so that it holds up no step; until then, matches are found in the part that is in it.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/token_index.h"

namespace heddle::engine {

class HistoryIndex {
 public:
  // Indexes the last options.max_tokens of the prompt.
  HistoryIndex(const TokenIndex::Options& options, std::span<const TokenId> prompt);

  void Append(std::span<const TokenId> tokens);

  // Overwrites *found with the earlier occurrences of the end of the sequence.
  void Find(TokenIndex::Occurrences* found);

  // The last tokens, as many as a match can have, or all.
  std::span<const TokenId> tail() const;
  const TokenIndex& index() const { return index_; }

 private:
  void Enter(size_t count);

  size_t tail_tokens_;
  TokenIndex index_;
  std::vector<TokenId> waiting_;  // not in the index yet, from num_entered_ on
  size_t num_entered_ = 0;
  std::vector<TokenId> tail_;  // ends with the last tail_tokens_ tokens
};

// The continuation that most of the occurrences have, token by token, until they end or differ in
// every way: *tokens and, for each, which share of the occurrences that continued so far has it.
// Overwrites both. Of equal shares the latest occurrence decides.
void VoteContinuation(const TokenIndex& index, const TokenIndex::Occurrences& found,
                      int32_t max_tokens, std::vector<TokenId>* tokens, std::vector<float>* shares);

}  // namespace heddle::engine
