#include "engine/draft/history_index.h"

#include <algorithm>

namespace heddle::engine {
namespace {

// Tokens that enter the index per call: about 100 us. A prompt of usual length enters at once.
constexpr size_t kEnteredPerCall = 1024;
constexpr size_t kEnteredAtBegin = 4096;
// Room for an answer that the index need not grow for.
constexpr int64_t kExpectedAnswer = 512;

std::span<const TokenId> LastTokens(std::span<const TokenId> tokens, int64_t count) {
  return tokens.last(std::min(tokens.size(), static_cast<size_t>(count)));
}

}  // namespace

HistoryIndex::HistoryIndex(const TokenIndex::Options& options, std::span<const TokenId> prompt)
    : tail_tokens_(static_cast<size_t>(options.max_match)),
      index_(options, static_cast<int64_t>(std::min<size_t>(
                          prompt.size(), static_cast<size_t>(options.max_tokens))) +
                          kExpectedAnswer) {
  Append(LastTokens(prompt, options.max_tokens));
  Enter(kEnteredAtBegin);
}

void HistoryIndex::Append(std::span<const TokenId> tokens) {
  waiting_.insert(waiting_.end(), tokens.begin(), tokens.end());
  const std::span<const TokenId> last = LastTokens(tokens, static_cast<int64_t>(tail_tokens_));
  if (tail_.size() + last.size() > 4 * tail_tokens_) {
    tail_.erase(tail_.begin(),
                tail_.end() - static_cast<ptrdiff_t>(std::min(tail_.size(), tail_tokens_)));
  }
  tail_.insert(tail_.end(), last.begin(), last.end());
}

void HistoryIndex::Find(TokenIndex::Occurrences* found) {
  Enter(kEnteredPerCall);
  index_.Find(tail(), found);
}

void HistoryIndex::Enter(size_t count) {
  const size_t end = std::min(waiting_.size(), num_entered_ + count);
  while (num_entered_ < end) index_.Append(waiting_[num_entered_++]);
  if (num_entered_ < waiting_.size()) return;
  if (waiting_.size() > kEnteredAtBegin) {
    std::vector<TokenId>().swap(waiting_);  // a long prompt's memory
  } else {
    waiting_.clear();
  }
  num_entered_ = 0;
}

std::span<const TokenId> HistoryIndex::tail() const {
  return LastTokens(tail_, static_cast<int64_t>(tail_tokens_));
}

void VoteContinuation(const TokenIndex& index, const TokenIndex::Occurrences& found,
                      int32_t max_tokens, std::vector<TokenId>* tokens,
                      std::vector<float>* shares) {
  tokens->clear();
  shares->clear();
  std::vector<int64_t> places = found.ends;  // latest first
  while (static_cast<int32_t>(tokens->size()) < max_tokens) {
    size_t best_count = 0;
    TokenId best = kNoToken;
    for (size_t i = 0; i < places.size() && places.size() - i > best_count; ++i) {
      const TokenId token = index.Token(places[i]);
      if (token == kNoToken) continue;
      const auto count = static_cast<size_t>(
          std::count_if(places.begin() + static_cast<ptrdiff_t>(i), places.end(),
                        [&](int64_t place) { return index.Token(place) == token; }));
      if (count > best_count) {
        best_count = count;
        best = token;
      }
    }
    if (best_count == 0) return;
    tokens->push_back(best);
    shares->push_back(static_cast<float>(best_count) / static_cast<float>(places.size()));
    std::erase_if(places, [&](int64_t place) { return index.Token(place) != best; });
    for (int64_t& place : places) ++place;
  }
}

}  // namespace heddle::engine
