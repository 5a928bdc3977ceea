#include "engine/draft/suffix_drafter.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/hash/hash.h"

namespace heddle::engine {
namespace {

// The first tokens of an answer that others learn from.
constexpr size_t kLearntTokens = 16384;
// Tokens of finished answers that enter the index, when a proposal is asked for, for each token
// that sequences gained since: answers are made of gained tokens, so that more than one keeps up.
constexpr size_t kEnteredPerToken = 4;
// Tokens that count for that at a time: many come at once behind a pause.
constexpr size_t kMostAtOnce = 256;
// Answers that wait to enter a scope's index, in tokens; further ones are not learnt from.
constexpr size_t kMaxWaiting = 65536;
// Memory of a scope beside its index.
constexpr int64_t kScopeBytes = 512;

}  // namespace

size_t SuffixDrafter::ScopeHash::operator()(const DraftScope& scope) const {
  return absl::HashOf(scope.tenant, scope.adapters);
}

SuffixDrafter::SuffixDrafter(const SuffixOptions& options)
    : max_corpus_bytes_(options.max_corpus_bytes) {
  history_options_.max_match = options.max_match;
  history_options_.max_tokens = options.max_history_tokens;
  corpus_options_.max_match = options.max_match;
  corpus_options_.orders = {3, 8};
  for (TokenIndex::Options* index : {&history_options_, &corpus_options_}) {
    std::erase_if(index->orders, [&](int32_t order) { return order > options.max_match; });
    if (index->orders.empty()) index->orders = {options.max_match};
  }
  // While an index grows, it and the next, twice as large, are both there.
  const int64_t largest = max_corpus_bytes_ * 2 / 3 / TokenIndex::BytesPerToken(corpus_options_);
  corpus_options_.max_tokens =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(largest, 1))));
}

SuffixDrafter::Corpus* SuffixDrafter::FindCorpus(const DraftScope& scope) {
  const auto found = corpora_.find(scope);
  if (found == corpora_.end()) return nullptr;
  found->second->used = ++clock_;
  return found->second.get();
}

void SuffixDrafter::Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
                          std::span<const TokenId>) {
  sequences_.insert_or_assign(id, std::make_unique<Sequence>(Sequence{
                                      scope, HistoryIndex(history_options_, prompt), {}, {}, {}}));
}

void SuffixDrafter::Append(SequenceId id, std::span<const TokenId> tokens) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  sequence.own.Learn(tokens, &acceptance_);
  sequence.history.Append(tokens);
  const size_t room = kLearntTokens - std::min(kLearntTokens, sequence.answer.size());
  if (max_corpus_bytes_ > 0) {
    const auto learnt = tokens.first(std::min(room, tokens.size()));
    sequence.answer.insert(sequence.answer.end(), learnt.begin(), learnt.end());
  }
  Corpus* const corpus = FindCorpus(sequence.scope);
  if (corpus == nullptr) return;
  sequence.shared.Learn(tokens, &corpus->acceptance);
  corpus->gained = std::min(corpus->gained + tokens.size(), kMostAtOnce);
}

void SuffixDrafter::Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) {
  tree->Clear();
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  sequence.history.Find(&found_);
  VoteContinuation(sequence.history.index(), found_, max_tokens, &tokens_, &shares_);
  sequence.own.Propose(tokens_, shares_, found_.length, acceptance_, tree);

  Corpus* const corpus = FindCorpus(sequence.scope);
  if (corpus == nullptr) return;
  Enter(corpus, kEnteredPerToken * std::exchange(corpus->gained, 0));
  ForgetScopes(sequence.scope);
  corpus->index.Find(sequence.history.tail(), &found_);
  VoteContinuation(corpus->index, found_, max_tokens, &tokens_, &shares_);
  sequence.shared.Propose(tokens_, shares_, found_.length, corpus->acceptance, &shared_tree_);
  if (ExpectedGain(shared_tree_) > ExpectedGain(*tree)) std::swap(*tree, shared_tree_);
}

// Append says what became of every proposal, verified or not.
void SuffixDrafter::Verified(SequenceId, int32_t, int32_t) {}

void SuffixDrafter::End(SequenceId id, bool finished) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  const std::unique_ptr<Sequence> sequence = std::move(found->second);
  sequences_.erase(found);
  if (finished && !sequence->answer.empty()) Keep(sequence->scope, sequence->answer);
}

void SuffixDrafter::Keep(const DraftScope& scope, std::span<const TokenId> answer) {
  std::unique_ptr<Corpus>& corpus = corpora_[scope];
  if (corpus == nullptr) {
    corpus = std::make_unique<Corpus>(TokenIndex(corpus_options_, 0));
  }
  corpus->used = ++clock_;
  if (corpus->waiting.size() - corpus->num_entered + answer.size() < kMaxWaiting) {
    corpus->waiting.push_back(kNoToken);
    corpus->waiting.insert(corpus->waiting.end(), answer.begin(), answer.end());
  }
  Enter(corpus.get(), kEnteredPerToken);
  ForgetScopes(scope);
}

void SuffixDrafter::Enter(Corpus* corpus, size_t count) {
  const size_t end = std::min(corpus->waiting.size(), corpus->num_entered + count);
  while (corpus->num_entered < end) {
    corpus->index.Append(corpus->waiting[corpus->num_entered++]);
  }
  // Entered tokens are dropped when they are half of all: constant work per token.
  if (corpus->num_entered * 2 >= corpus->waiting.size()) {
    corpus->waiting.erase(corpus->waiting.begin(),
                          corpus->waiting.begin() + static_cast<ptrdiff_t>(corpus->num_entered));
    corpus->num_entered = 0;
  }
  CountBytes(corpus);
}

void SuffixDrafter::CountBytes(Corpus* corpus) {
  const int64_t bytes = kScopeBytes + corpus->index.bytes() +
                        static_cast<int64_t>(corpus->waiting.capacity() * sizeof(TokenId));
  corpus_bytes_ += bytes - corpus->bytes;
  corpus->bytes = bytes;
}

void SuffixDrafter::ForgetScopes(const DraftScope& except) {
  while (corpora_.size() > 1 && corpus_bytes_ > max_corpus_bytes_) {
    auto oldest = corpora_.end();
    for (auto i = corpora_.begin(); i != corpora_.end(); ++i) {
      if (i->first == except) continue;
      if (oldest == corpora_.end() || i->second->used < oldest->second->used) oldest = i;
    }
    corpus_bytes_ -= oldest->second->bytes;
    corpora_.erase(oldest);
  }
}

}  // namespace heddle::engine
