// Constrained decoding: a grammar compiled for a vocabulary, and where one text stands in it.
//
// Masks. What a state of the grammar reads by itself is the same whatever is on the stack: for each
// state, the tokens that it reads to their end are computed once, with the places in the trie of
// the vocabulary where the state's rule has ended and the rest depends on the stack. A text's mask
// is the union of these sets over its states, plus what the stack allows below those places. Masks
// of whole contexts are kept too, since texts come back to the same ones (within a string, say).
// Sources: Dong et al., "XGrammar", 2024 (context-independent tokens); Moskal et al., LLGuidance
// (walking a trie with a lazily built automaton).
//
// Threads: a CompiledGrammar may be used by any thread (a mutex is held for one mask or token); a
// Matcher belongs to one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/vocabulary.h"
#include "engine/step.h"

namespace heddle::engine::grammar {

// [mask_words]: bit `id % 32` of word `id / 32` says whether token `id` is allowed.
using TokenMask = std::vector<uint32_t>;

inline bool IsAllowed(const TokenMask& mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

class CompiledGrammar {
 public:
  // `end_tokens` end an answer: they are allowed where the text may end, and only there.
  // REQUIRES: they are ids of the vocabulary, one at least.
  CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                  std::vector<TokenId> end_tokens);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  int32_t num_states() const { return automaton_.num_states(); }

  // Computes what states read by themselves ahead of the first token, for about `max_us`.
  // RESOURCE_EXHAUSTED: the grammar is too ambiguous for masks in bounded time.
  absl::Status Prepare(int64_t max_us);

 private:
  friend class Matcher;

  // Tokens that a state reads to their end, as a list where they are few.
  struct LocalMask {
    std::vector<TokenId> few;
    TokenMask bits;                // empty where `few` is used
    std::vector<uint32_t> leaves;  // trie nodes with more below, where the rule may have ended
    bool leaves_at_once = false;   // before the first byte
  };
  // Contexts and their masks; dropped as a whole when it has grown too large.
  struct Store {
    explicit Store(const Automaton* automaton) : pool(automaton) {}
    ContextPool pool;
    absl::flat_hash_map<ContextId, std::shared_ptr<const TokenMask>> masks;
  };

  std::shared_ptr<Store> CurrentStore();
  absl::StatusOr<std::shared_ptr<const TokenMask>> MaskOf(Store* store, ContextId context);
  absl::StatusOr<TokenMask> ComputeMask(ContextPool* pool, ContextId context);
  absl::StatusOr<const LocalMask*> LocalOf(int32_t state);
  absl::StatusOr<LocalMask> ComputeLocal(int32_t state);
  absl::Status Walk(ContextPool* pool, ContextId from, const TokenTrie& trie, uint32_t begin,
                    uint32_t end, TokenMask* mask);
  void Allow(TokenId token, TokenMask* mask) const;

  const Automaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::vector<TokenId> end_tokens_;

  std::mutex mutex_;
  // GUARDED_BY(mutex_), all of the following.
  std::shared_ptr<Store> store_;
  ContextPool local_pool_;  // contexts above kOpenContext
  absl::flat_hash_map<int32_t, LocalMask> locals_;
  size_t local_bytes_ = 0;
  std::vector<ContextId> path_;  // contexts from the root of a trie to a node
};

// Copies are cheap and independent: branches of a request, and going back, are copies.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<CompiledGrammar> grammar);

  // Which tokens may come next; never none. RESOURCE_EXHAUSTED: the grammar is too ambiguous.
  // INTERNAL: the vocabulary has no token for what must follow.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask();

  // Takes a token. False: it is not allowed here; the matcher then stays as it was.
  bool Accept(TokenId token);
  bool AcceptText(std::string_view bytes);

  bool CanEnd();
  bool ended() const { return ended_; }  // an end token was accepted

  // The bytes that must follow, as far as there is no choice, `max_bytes` at most.
  std::string ForcedText(size_t max_bytes);

  const CompiledGrammar& grammar() const { return *grammar_; }

 private:
  ContextPool& Pool();  // takes the context over if the store has changed

  std::shared_ptr<CompiledGrammar> grammar_;
  std::shared_ptr<CompiledGrammar::Store> store_;
  ContextId context_ = kDeadContext;
  bool ended_ = false;
};

}  // namespace heddle::engine::grammar
