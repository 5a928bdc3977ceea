#include "engine/draft/prediction_follower.h"

#include <algorithm>
#include <cstdlib>

namespace heddle::engine {
namespace {

// The prediction's beginning is trusted like a match of so many tokens: the client knows its text.
constexpr int32_t kTrustedBeginning = 5;
// Below this length another place that matches longer may be the right one.
constexpr int32_t kSureMatch = 4;

TokenIndex::Options PredictionIndexOptions() {
  TokenIndex::Options options;
  options.orders = {2, 6};
  options.max_tokens = static_cast<int64_t>(PredictionFollower::kMaxTokens);
  return options;
}

}  // namespace

PredictionFollower::PredictionFollower(std::span<const TokenId> prediction)
    : num_tokens_(static_cast<int64_t>(prediction.size())),
      prediction_(PredictionIndexOptions(),
                  prediction.first(std::min(prediction.size(), kMaxTokens))),
      tokens_(prediction.begin(),
              prediction.begin() + static_cast<ptrdiff_t>(std::min(prediction.size(), kMaxTokens))),
      match_length_(kTrustedBeginning) {}

std::span<const TokenId> PredictionFollower::Rest() const {
  return std::span<const TokenId>(tokens_).subspan(std::min(next_, tokens_.size()));
}

int64_t PredictionFollower::num_accepted() const { return std::min(num_followed_, num_tokens_); }

void PredictionFollower::Append(std::span<const TokenId> tokens) {
  prediction_.Append({});  // a long prediction is indexed bit by bit
  for (TokenId token : tokens) AppendOne(token);
}

void PredictionFollower::AppendOne(TokenId token) {
  const auto kept = static_cast<size_t>(PredictionIndexOptions().max_match);
  if (answer_.size() >= 2 * kept) answer_.erase(answer_.begin(), answer_.end() - kept);
  answer_.push_back(token);
  const bool expected = next_ < tokens_.size() && tokens_[next_] == token;
  if (expected) {
    ++num_followed_;
    ++match_length_;
  } else {
    match_length_ = 0;
  }
  // After another token than the expected one, the answer may go on as if that had come.
  if (next_ < tokens_.size()) ++next_;
  if (match_length_ < kSureMatch) FindAgain();
}

void PredictionFollower::FindAgain() {
  prediction_.index().Find(answer_, &found_);
  if (found_.length <= match_length_) return;
  const auto distance = [&](int64_t end) { return std::abs(end - static_cast<int64_t>(next_)); };
  next_ = static_cast<size_t>(
      *std::min_element(found_.ends.begin(), found_.ends.end(),
                        [&](int64_t a, int64_t b) { return distance(a) < distance(b); }));
  match_length_ = found_.length;
}

}  // namespace heddle::engine
