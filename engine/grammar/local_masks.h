// What states of a grammar read by themselves, whatever is on the stack below them: for most
// states nearly all of the work for a mask, and the same in every text, so that it is done once.
// Source: Dong et al., "XGrammar", 2024 (context-independent tokens).
//
// Thread-safety: none; one thread uses a LocalMasks at a time. Cost: a walk over the part of the
// vocabulary's trie that the state reads, some 2 ms of 128 K tokens for a state within a string.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/vocabulary.h"

namespace heddle::engine::grammar {

// Items of contexts looked at for one mask: some 0.3 s. Grammars of people stay below 1 % of it.
inline constexpr int64_t kMaxMaskWork = 20'000'000;

absl::Status TooAmbiguous();

// Tokens that a state reads to their end, as a list where they are few.
struct LocalMask {
  std::vector<TokenId> few;
  TokenMask bits;                // empty where `few` is used
  std::vector<uint32_t> leaves;  // trie nodes with more below, where the rule may have ended
  bool leaves_at_once = false;   // before the first byte

  size_t bytes() const {
    return sizeof(LocalMask) + few.size() * sizeof(TokenId) + bits.size() * sizeof(uint32_t) +
           leaves.size() * sizeof(uint32_t);
  }
};

class LocalMasks {
 public:
  // Both outlive it.
  LocalMasks(const Automaton* automaton, const Vocabulary* vocabulary);

  // RESOURCE_EXHAUSTED: the grammar is too ambiguous. Of a state with a bounded twin, only tokens
  // of up to Automaton::kSightBytes bytes.
  absl::StatusOr<LocalMask> Compute(int32_t state);

 private:
  absl::Status Walk(int32_t state, LocalMask* local, TokenMask* bits, size_t* count);

  const Automaton* automaton_;
  const Vocabulary* vocabulary_;
  std::unique_ptr<ContextPool> pool_;  // contexts above kOpenContext
  std::vector<ContextId> path_;        // contexts from the root of the trie to a node
};

}  // namespace heddle::engine::grammar
