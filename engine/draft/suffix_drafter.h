// Suffix decoding: proposes what followed most of the earlier occurrences of the longest possible
// end of the sequence, in its own prompt and answer and in finished answers of its scope.
//
// Bounded: finished answers take at most max_corpus_bytes; each scope forgets its oldest tokens,
// and the scope that was used longest ago is forgotten whole. A finished answer enters the index
// bit by bit, with each proposal a few tokens for each token that sequences have gained since the
// last one: while nobody asks, appending costs next to nothing.
// Source: Oliaro et al., "SuffixDecoding: A Model-Free Approach to Speeding Up Large Language Model
// Inference", 2024.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/draft/acceptance.h"
#include "engine/draft/drafter.h"
#include "engine/draft/history_index.h"

namespace heddle::engine {

struct SuffixOptions {
  int32_t max_match = 32;                        // longer matches count as so long; >= 2
  int64_t max_history_tokens = 65536;            // per sequence; a power of two
  int64_t max_corpus_bytes = int64_t{64} << 20;  // finished answers of all scopes; 0: none are kept
};

class SuffixDrafter : public Drafter {
 public:
  explicit SuffixDrafter(const SuffixOptions& options);

  void Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
             std::span<const TokenId> prediction) override;
  void Append(SequenceId id, std::span<const TokenId> tokens) override;
  void Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) override;
  void Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) override;
  void End(SequenceId id, bool finished) override;
  DrafterKind kind() const override { return DrafterKind::kSuffix; }

  int64_t corpus_bytes() const { return corpus_bytes_; }
  int64_t num_scopes() const { return static_cast<int64_t>(corpora_.size()); }

 private:
  // Finished answers of a scope.
  struct Corpus {
    explicit Corpus(TokenIndex empty) : index(std::move(empty)) {}

    TokenIndex index;
    std::vector<TokenId> waiting;  // answers that are not in the index yet, from num_entered on
    size_t num_entered = 0;
    size_t gained = 0;  // tokens of sequences since a proposal was asked for
    uint64_t used = 0;  // the clock when a sequence used it last
    int64_t bytes = 0;  // as counted in corpus_bytes_
    Acceptance acceptance;
  };
  struct Sequence {
    DraftScope scope;
    HistoryIndex history;
    std::vector<TokenId> answer;  // its first tokens, as many as are learnt from
    ProposalRecord own;           // from the history
    ProposalRecord shared;        // from the corpus
  };
  struct ScopeHash {
    size_t operator()(const DraftScope& scope) const;
  };

  Corpus* FindCorpus(const DraftScope& scope);
  void Keep(const DraftScope& scope, std::span<const TokenId> answer);
  void Enter(Corpus* corpus, size_t count);
  void CountBytes(Corpus* corpus);
  void ForgetScopes(const DraftScope& except);

  TokenIndex::Options history_options_;
  TokenIndex::Options corpus_options_;
  int64_t max_corpus_bytes_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  absl::flat_hash_map<DraftScope, std::unique_ptr<Corpus>, ScopeHash> corpora_;
  int64_t corpus_bytes_ = 0;
  uint64_t clock_ = 0;
  Acceptance acceptance_;          // of proposals from histories
  TokenIndex::Occurrences found_;  // scratch, as are the next three
  std::vector<TokenId> tokens_;
  std::vector<float> shares_;
  DraftTree shared_tree_;
};

}  // namespace heddle::engine
