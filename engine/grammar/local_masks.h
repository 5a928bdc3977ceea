// The tokens that a state of a grammar reads by itself, whatever is on the stack below: for most
// states that is nearly all of the work for a mask, and it is the same in every text, so it is done
// once. Sources: Dong et al., "XGrammar", 2024 (context-independent tokens); token_slices.h for
// text.
//
// Thread-safety: none; one thread uses a LocalMasks at a time. Cost: some 10 us for a state within
// text; for others a walk over the part of the vocabulary's trie that the state reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/text_runs.h"
#include "engine/grammar/token_slices.h"
#include "engine/grammar/vocabulary.h"

namespace heddle::engine::grammar {

// Limit on the items of contexts looked at for one mask: some 0.3 s. Usual grammars stay below 1 %
// of it.
inline constexpr int64_t kMaxMaskWork = 20'000'000;

absl::Status TooAmbiguous();
// The status of a search that has used up its work for now; the next one continues with what it has
// found. Clients never see it.
absl::Status OutOfWork();
bool IsOutOfWork(const absl::Status& status);

// Tokens that are read completely, as a list if they are few; and the rests of tokens of which the
// rule reads only the first part and may then end.
struct TokenPart {
  struct Leaf {
    const TokenTrie* trie;  // of the vocabulary or of its slices
    TokenTrie::Range rests;
  };
  std::vector<TokenId> few;
  TokenMask bits;  // empty if `few` is used
  std::vector<Leaf> leaves;

  size_t bytes() const {
    return sizeof(TokenPart) + few.size() * sizeof(TokenId) + bits.size() * sizeof(uint32_t) +
           leaves.size() * sizeof(Leaf);
  }
};

// The tokens that a state reads: those of `slices` of up to `run` characters, and the parts.
struct LocalMask {
  std::shared_ptr<const TokenSlices> slices;  // null: none
  int32_t run = 0;
  // The rule may end within the run: this mask then holds only if nothing that continues below
  // begins with a character of `slices`.
  bool ends_in_run = false;
  bool leaves_at_once = false;  // it may end before the first byte
  int32_t reach = 0;            // most frames above the state that must fit on the stack
  TokenPart own;
  std::vector<std::shared_ptr<const TokenPart>> shared;  // with other states

  size_t new_bytes = 0;  // bytes of its own, and of shared parts first found for it
};

class LocalMasks {
 public:
  // Identifies a local mask: twins have the same one, and a state within text has its own.
  struct Key {
    int32_t state;
    bool has_run;
    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.state, key.has_run);
    }
  };

  // Both outlive it.
  LocalMasks(const Automaton* automaton, const Vocabulary* vocabulary);

  Key KeyOf(int32_t state);
  // OutOfWork if it needs more than LimitWork has allowed. Without a run, and with a bounded twin,
  // the mask has only tokens of up to Automaton::kSightBytes bytes.
  absl::StatusOr<LocalMask> Compute(Key key);

  // Limits the following work, as ContextPool::LimitWork does.
  void LimitWork(int64_t items);
  int64_t work() const { return forgotten_work_ + pool_->work(); }

  // Frees what only further states would need.
  void Trim();
  size_t heap_bytes() const;

 private:
  // Identifies the reading of the tokens below a node of the vocabulary's trie.
  struct PartKey {
    uint32_t node;
    int32_t state;  // the state behind that node, the first of its twins
    uint16_t sight;
    bool operator==(const PartKey&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const PartKey& key) {
      return H::combine(std::move(h), key.node, key.state, key.sight);
    }
  };

  std::shared_ptr<const TokenSlices> SlicesOf(int32_t set);
  absl::Status AddRun(const TextRun& run, LocalMask* local);
  absl::Status AddRoots(ContextId alone, uint16_t sight, LocalMask* local);
  absl::Status AddShared(PartKey key, LocalMask* local);
  void ForgetParts();
  void NewPool();
  absl::Status Walk(const TokenTrie& trie, TokenTrie::Range range, ContextId from, uint16_t sight,
                    TokenPart* part);
  void Add(std::span<const TokenId> tokens, TokenPart* part) const;

  const Automaton* automaton_;
  const Vocabulary* vocabulary_;
  TextRuns runs_;
  std::vector<std::shared_ptr<const TokenSlices>> slices_;  // [character sets]
  std::vector<bool> asked_;                                 // [character sets]
  std::unique_ptr<ContextPool> pool_;                       // contexts above kOpenContext
  std::vector<ContextId> path_;  // contexts from the root of the trie to a node
  absl::flat_hash_map<PartKey, std::shared_ptr<const TokenPart>> parts_;
  size_t part_bytes_ = 0;
  int64_t max_work_ = 0;        // in terms of work()
  int64_t forgotten_work_ = 0;  // of pools that are gone
};

}  // namespace heddle::engine::grammar
