// Constrained decoding: a grammar compiled for a vocabulary, and the position of one text in it.
//
// Masks. A text's mask is the union of what its states read by themselves (local_masks.h) and,
// where they end within a token, of what the stack allows behind them. Masks of whole contexts are
// kept too, since texts return to the same contexts (within a string, say).
//
// Forced tokens. Where the grammar leaves no choice of the text, its tokens are those that the
// tokenizer encodes it with, as far as the following text cannot change them. Masks allow only
// these, and a caller that needs no log-probabilities can skip the model's run for them.
// Sources: Dong et al., "XGrammar", 2024 (context-independent tokens); Moskal et al., LLGuidance
// (walking a trie with a lazily built automaton); Zheng et al., "SGLang", 2024 (jump-forward).
//
// Values that must be different (distinct_values.h) are beside the context: masks of contexts are
// as if there were none, and a matcher takes out of them what would repeat a value.
//
// Bounds. Taking a token or finding a mask takes at most kMaxTokenWork or kMaxMaskWork items of
// work; beyond that the matcher fails, for good, with RESOURCE_EXHAUSTED: the grammar is too
// ambiguous. Callers that must not wait search in parts: Find works for a given amount and the next
// call continues with what it has found; TryAccept, TryForced and KnownMask wait for no other
// thread.
//
// Threads: any thread may use a CompiledGrammar (a mutex is held for one mask or token, or for a
// part of a search); one thread at a time may use a Matcher.
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
#include "engine/grammar/budget.h"
#include "engine/grammar/cache_bytes.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/distinct_values.h"
#include "engine/grammar/local_masks.h"
#include "engine/grammar/vocabulary.h"
#include "engine/ids.h"

namespace heddle::engine::grammar {

class CompiledGrammar {
 public:
  // `end_tokens` end an answer: they are allowed only where the text may end. REQUIRES: they are
  // ids of the vocabulary, at least one.
  CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                  std::vector<TokenId> end_tokens, std::shared_ptr<CacheBytes> cache = nullptr);
  ~CompiledGrammar();

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  int32_t num_states() const { return automaton_.num_states(); }
  // Messages about what was left out of schemas because it is not supported
  // (JsonOptions::drops_unsupported). Set before the grammar is shared.
  const std::vector<std::string>& dropped() const { return dropped_; }
  void set_dropped(std::vector<std::string> dropped) { dropped_ = std::move(dropped); }

  // Finds the first mask, then computes what states read by themselves for about `max_us` of CPU.
  // Returns whether everything worth computing is done. RESOURCE_EXHAUSTED: the grammar is too
  // ambiguous for masks in bounded time. An error of Budget::Spend ends it earlier.
  absl::StatusOr<bool> Prepare(int64_t max_us, Budget* budget = nullptr);

  // Continues where Prepare stopped, until all is done, `*stop` is set, or about `max_us` of CPU
  // are spent. Returns whether nothing is left to do. Matchers wait for it only as long as it takes
  // to store a finished part. Call it from one thread at a time.
  bool PrepareRest(const std::atomic<bool>& stop, int64_t max_us);

  // The bytes that it holds on the heap, as last counted.
  size_t heap_bytes() const { return heap_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Matcher;

  // Contexts with their masks and forced tokens; dropped as a whole when it has grown too large.
  struct Store {
    explicit Store(const Automaton* automaton) : pool(automaton) {}
    size_t bytes(size_t mask_bytes) const {
      return pool.bytes() + masks.size() * mask_bytes + masks.capacity() * 25 + forced_bytes;
    }
    ContextPool pool;
    absl::flat_hash_map<ContextId, std::shared_ptr<const TokenMask>> masks;
    // Keyed by the context and the token that led to it.
    absl::flat_hash_map<std::pair<ContextId, TokenId>, std::vector<TokenId>> forced;
    size_t forced_bytes = 0;
  };

  std::shared_ptr<Store> CurrentStore();
  void LimitWork(Store* store, int64_t items);
  int64_t WorkOf(const Store& store) const { return store.pool.work() + local_masks_.work(); }
  absl::Status PrepareFirst(Budget* budget);
  void CountBytes();
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
  const std::shared_ptr<CacheBytes> cache_;
  std::vector<std::string> dropped_;
  std::atomic<size_t> heap_bytes_{0};
  int32_t next_rest_ = 0;  // the state at which PrepareRest continues
  int64_t rest_us_ = 0;    // time that PrepareRest has spent

  std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  std::shared_ptr<Store> store_;
  LocalMasks local_masks_;
  absl::flat_hash_map<LocalMasks::Key, LocalMask> locals_;
  size_t local_bytes_ = 0;
  std::vector<ContextId> path_;  // contexts from the root of a trie to a node
};

// Limit on the items of contexts looked at to accept one token: some 30 ms.
inline constexpr int64_t kMaxTokenWork = 2'000'000;
// The part of it that a thread on which others wait may do: some 0.1 ms.
inline constexpr int64_t kQuickWork = 8'000;

// Copies are cheap and independent: the branches of a request and saved positions are copies.
class Matcher {
 public:
  // `forces`: forced texts are encoded as the tokenizer does it (above); otherwise the model
  // chooses among all tokens that begin one.
  explicit Matcher(std::shared_ptr<CompiledGrammar> grammar, bool forces = true);

  // The tokens that may come next, at least one. RESOURCE_EXHAUSTED: the grammar is too ambiguous.
  // INTERNAL: the vocabulary has no token for what must follow.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask();
  // Whether a part of a search waits for another thread that uses the grammar, or is postponed.
  enum class IfBusy : uint8_t { kWait, kLater };
  // As Mask, within about `max_items` of work; null if there is more to do.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Find(int64_t max_items,
                                                        IfBusy if_busy = IfBusy::kWait);
  // The same if it is known without a search and no other thread searches; null otherwise.
  std::shared_ptr<const TokenMask> KnownMask();

  // Takes a token. Returns false if it is not allowed here, in which case the matcher stays as it
  // was, or if the matcher has failed.
  bool Accept(TokenId token);
  bool AcceptText(std::string_view bytes);
  // As Accept for an allowed token, within about `max_items` of work; false if there is more to do.
  // RESOURCE_EXHAUSTED: the grammar is too ambiguous. INTERNAL: the token is not allowed.
  absl::StatusOr<bool> AcceptWithin(TokenId token, int64_t max_items,
                                    IfBusy if_busy = IfBusy::kWait);
  // As Accept, but also returns false, with the matcher unchanged, if it takes more than kQuickWork
  // or another thread uses the grammar.
  bool TryAccept(TokenId token);
  // The error that stopped the matcher; OK if there is none.
  const absl::Status& failure() const { return failure_; }

  bool CanEnd();
  bool ended() const { return ended_; }  // an end token was accepted

  // The tokens that must follow: those that successive calls of Mask would give if each is
  // accepted. Empty if there is a choice. Valid until the matcher is used again.
  std::span<const TokenId> Forced();
  // The same, or none if they are not found within kQuickWork or another thread uses the grammar.
  std::span<const TokenId> TryForced();

  // The bytes that must follow, at most `max_bytes`.
  std::string ForcedText(size_t max_bytes);

  const CompiledGrammar& grammar() const { return *grammar_; }

 private:
  ContextPool& Pool();  // takes the context over if the store has changed
  bool Lock(IfBusy if_busy, std::unique_lock<std::mutex>* lock);
  absl::StatusOr<std::shared_ptr<const TokenMask>> FindLocked(int64_t max_items);
  bool AcceptLocked(TokenId token, int64_t max_items);
  bool StepLocked(std::string_view bytes, int64_t max_items);
  void FindForced();
  bool Fail();
  bool Reads(ContextPool* pool, std::string_view bytes, ContextId* context,
             DistinctValues* values) const;
  bool IsUntracked() const;
  const TokenMask* TokensThatMayRepeat(bool in_own_string) const;
  bool Repeats(ContextPool* pool, TokenId token, DistinctValues* scratch) const;
  std::shared_ptr<const TokenMask> WithoutRepeats(ContextPool* pool,
                                                  std::shared_ptr<const TokenMask> mask) const;

  std::shared_ptr<CompiledGrammar> grammar_;
  std::shared_ptr<CompiledGrammar::Store> store_;
  ContextId context_ = kDeadContext;
  DistinctValues values_;
  bool ended_ = false;
  bool forces_;
  // These stay valid until another token is taken: a shorter rest could be encoded differently.
  std::vector<TokenId> forced_;
  size_t forced_taken_ = 0;
  bool forced_known_ = false;  // for this position
  TokenId last_ = -1;          // the token accepted last
  int64_t searched_ = 0;       // work spent on this position's mask, or on the token behind it
  absl::Status failure_;
};

}  // namespace heddle::engine::grammar
