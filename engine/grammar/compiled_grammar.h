// Constrained decoding: a grammar compiled for a vocabulary, and where one text stands in it.
//
// Masks. A text's mask is the union of what its states read by themselves (local_masks.h), plus
// what the stack allows where they end within a token. Masks of whole contexts are kept too, since
// texts come back to the same ones (within a string, say).
//
// Forced tokens. Where the grammar leaves no choice of the text, its tokens are those that the
// tokenizer writes it with, as far as what follows cannot change them: masks allow these alone,
// and who has no use for their log-probabilities need not run the model for them.
// Sources: Dong et al., "XGrammar", 2024 (context-independent tokens); Moskal et al., LLGuidance
// (walking a trie with a lazily built automaton); Zheng et al., "SGLang", 2024 (jump-forward).
//
// Threads: a CompiledGrammar may be used by any thread (a mutex is held for one mask or token); a
// Matcher belongs to one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/local_masks.h"
#include "engine/grammar/vocabulary.h"
#include "engine/step.h"

namespace heddle::engine::grammar {

class CompiledGrammar {
 public:
  // `end_tokens` end an answer: they are allowed where the text may end, and only there.
  // REQUIRES: they are ids of the vocabulary, one at least.
  CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                  std::vector<TokenId> end_tokens);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  int32_t num_states() const { return automaton_.num_states(); }

  // Finds the first mask, and computes what states read by themselves for about `max_us` of CPU.
  // Returns whether all that is worth it is computed. RESOURCE_EXHAUSTED: the grammar is too
  // ambiguous for masks in bounded time.
  absl::StatusOr<bool> Prepare(int64_t max_us);

  // Goes on where Prepare stopped, until all is done or `*stop`. Matchers wait for it no longer
  // than it takes to hand over a finished part.
  void PrepareRest(const std::atomic<bool>& stop);

 private:
  friend class Matcher;

  // Contexts and what is known of them; dropped as a whole when it has grown too large.
  struct Store {
    explicit Store(const Automaton* automaton) : pool(automaton) {}
    size_t bytes(size_t mask_bytes) const {
      return pool.bytes() + masks.size() * mask_bytes + forced_bytes;
    }
    ContextPool pool;
    absl::flat_hash_map<ContextId, std::shared_ptr<const TokenMask>> masks;
    // By the context and the token that led to it.
    absl::flat_hash_map<std::pair<ContextId, TokenId>, std::vector<TokenId>> forced;
    size_t forced_bytes = 0;
  };

  std::shared_ptr<Store> CurrentStore();
  absl::StatusOr<std::shared_ptr<const TokenMask>> MaskOf(Store* store, ContextId context);
  absl::StatusOr<TokenMask> ComputeMask(ContextPool* pool, ContextId context);
  absl::StatusOr<bool> AddStates(ContextPool* pool, ContextId context, TokenMask* mask);
  absl::Status AddLocal(ContextPool* pool, ContextId parent, const LocalMask& local,
                        TokenMask* mask);
  absl::Status AddPart(ContextPool* pool, ContextId parent, const TokenPart& part, TokenMask* mask);
  bool Holds(const LocalMask& local, ContextPool* pool, ContextId parent) const;
  absl::StatusOr<const LocalMask*> LocalOf(LocalMasks::Key key);
  void Keep(LocalMasks::Key key, LocalMask local);
  bool WantsLocal(LocalMasks::Key key) const;
  absl::Status Walk(ContextPool* pool, ContextId from, const TokenTrie& trie,
                    TokenTrie::Range range, TokenMask* mask);
  int ForcedByte(ContextPool* pool, ContextId context) const;
  std::string ForcedText(ContextPool* pool, ContextId* context, size_t max_bytes) const;
  const std::vector<TokenId>& ForcedOf(Store* store, ContextId context, TokenId before);
  std::vector<TokenId> ComputeForced(ContextPool* pool, ContextId context, TokenId before) const;

  const Automaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::vector<TokenId> end_tokens_;

  std::mutex mutex_;
  // GUARDED_BY(mutex_), all of the following.
  std::shared_ptr<Store> store_;
  LocalMasks local_masks_;
  absl::flat_hash_map<LocalMasks::Key, LocalMask> locals_;
  size_t local_bytes_ = 0;
  std::vector<ContextId> path_;  // contexts from the root of a trie to a node
};

// Copies are cheap and independent: branches of a request, and going back, are copies.
class Matcher {
 public:
  // `forces`: forced texts are written as the tokenizer writes them (above); otherwise the model
  // chooses among all tokens that begin one.
  explicit Matcher(std::shared_ptr<CompiledGrammar> grammar, bool forces = true);

  // Which tokens may come next; never none. RESOURCE_EXHAUSTED: the grammar is too ambiguous.
  // INTERNAL: the vocabulary has no token for what must follow.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask();
  // The same where it is known without a search; null otherwise.
  std::shared_ptr<const TokenMask> KnownMask();

  // Takes a token. False: it is not allowed here; the matcher then stays as it was.
  bool Accept(TokenId token);
  bool AcceptText(std::string_view bytes);

  bool CanEnd();
  bool ended() const { return ended_; }  // an end token was accepted

  // The tokens that must follow: all that Mask would give, one after the other, if these are
  // accepted. Empty: there is a choice. Valid until the matcher is used again.
  std::span<const TokenId> Forced();

  // The bytes that must follow, as far as there is no choice, `max_bytes` at most.
  std::string ForcedText(size_t max_bytes);

  const CompiledGrammar& grammar() const { return *grammar_; }

 private:
  ContextPool& Pool();  // takes the context over if the store has changed
  void FindForced();

  std::shared_ptr<CompiledGrammar> grammar_;
  std::shared_ptr<CompiledGrammar::Store> store_;
  ContextId context_ = kDeadContext;
  bool ended_ = false;
  bool forces_;
  // Once found, they hold until one is not taken: a shorter rest could be written otherwise.
  std::vector<TokenId> forced_;
  size_t forced_taken_ = 0;
  bool forced_known_ = false;  // for this place
  TokenId last_ = -1;          // the token accepted last
};

}  // namespace heddle::engine::grammar
