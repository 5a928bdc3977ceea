#include "engine/sample/dry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace heddle::engine {
namespace {

// The largest charge: finite, so that tokens are not banned, and the difference of two such logits
// is finite as well.
constexpr double kMaxCharge = std::numeric_limits<float>::max() / 4;

}  // namespace

Dry::Dry(const SamplingParams& params, std::span<const TokenId> prompt)
    : multiplier_(params.dry_multiplier),
      base_(params.dry_base),
      allowed_length_(params.dry_allowed_length),
      window_(params.dry_penalty_last_n),
      breakers_(params.dry_breakers) {
  if (window_ >= 0) {
    prompt = prompt.last(std::min(prompt.size(), static_cast<size_t>(window_)));
  }
  tokens_.reserve(prompt.size());
  previous_.reserve(prompt.size());
  for (TokenId token : prompt) Link(token);
  MatchAll();
  for (int32_t end = size() - 1; end > breaker_begin_; --end) FindBreaker(end);
}

int32_t Dry::WindowBegin() const { return window_ < 0 ? 0 : std::max(0, size() - window_); }

void Dry::Link(TokenId token) {
  const auto [place, is_new] = last_.try_emplace(token, size());
  previous_.push_back(is_new ? -1 : place->second);
  place->second = size();
  tokens_.push_back(token);
}

// The Z algorithm on the reversed text: z[k] tokens before the last k, that one included, are the
// last z[k]. The box [left, right) is the match found so far that reaches furthest.
void Dry::MatchAll() {
  const int32_t n = size();
  const auto at = [this, n](int32_t i) { return tokens_[static_cast<size_t>(n - 1 - i)]; };
  std::vector<int32_t> z(tokens_.size());
  int32_t left = 0, right = 0;
  for (int32_t k = 1; k < n; ++k) {
    int32_t length = 0;
    if (k < right) length = std::min(right - k, z[static_cast<size_t>(k - left)]);
    while (k + length < n && at(length) == at(k + length)) ++length;
    if (k + length > right) {
      left = k;
      right = k + length;
    }
    z[static_cast<size_t>(k)] = length;
    if (length > 0) matches_.push_back({n - 1 - k, length});
  }
}

void Dry::Append(TokenId token) {
  Link(token);
  std::swap(matches_, old_matches_);
  matches_.clear();
  // A match ends where the token stands, and is one longer than that which ended just before.
  const int32_t begin = WindowBegin();
  size_t old = 0;
  for (int32_t end = previous_.back(); end >= begin; end = previous_[static_cast<size_t>(end)]) {
    while (old < old_matches_.size() && old_matches_[old].end >= end) ++old;
    const bool goes_on = old < old_matches_.size() && old_matches_[old].end == end - 1;
    matches_.push_back({end, 1 + (goes_on ? old_matches_[old].length : 0)});
  }
  FindBreaker(size() - 1);
}

// Takes the breaker whose last token is at `end`, if it begins later than the latest known, or is
// the longer one.
void Dry::FindBreaker(int32_t end) {
  const std::span<const TokenId> text(tokens_.data(), static_cast<size_t>(end) + 1);
  for (const DryBreaker& breaker : breakers_) {
    const std::vector<TokenId>& tail = breaker.tail;
    if (tail.size() >= text.size() || (!tail.empty() && tail.back() != text.back())) continue;
    if (!std::equal(tail.begin(), tail.end(), text.last(tail.size()).begin())) continue;
    const auto begin = end - static_cast<int32_t>(tail.size());
    if (begin < breaker_begin_ || (begin == breaker_begin_ && end < breaker_end_)) continue;
    if (!breaker.HasHead(text[static_cast<size_t>(begin)])) continue;
    breaker_begin_ = begin;
    breaker_end_ = end;
  }
}

bool Dry::IsBreaker(TokenId token) const {
  return std::any_of(breakers_.begin(), breakers_.end(), [token](const DryBreaker& breaker) {
    return breaker.tail.empty() && breaker.HasHead(token);
  });
}

float Dry::Charge(int32_t length) const {
  const double charge =
      static_cast<double>(multiplier_) * std::pow(static_cast<double>(base_), length);
  return static_cast<float>(std::min(charge, kMaxCharge));
}

void Dry::AddEdits(std::vector<kernels::LogitEdit>* edits) const {
  const int32_t begin = WindowBegin();
  const int32_t unbroken = breaker_begin_ >= begin ? size() - 1 - breaker_end_ : size();
  absl::flat_hash_map<TokenId, int32_t> longest;  // by the token that would go on
  TokenId last = kNoToken;
  int32_t last_length = 0;
  for (const Match& match : matches_) {
    const int32_t length = std::min({match.length, match.end - begin + 1, unbroken});
    if (match.end < begin || length < allowed_length_) continue;
    const TokenId token = tokens_[static_cast<size_t>(match.end) + 1];
    if (token == last && length <= last_length) continue;  // often, where a text goes round
    int32_t& known = longest[token];
    known = std::max(known, length);
    last = token;
    last_length = known;
  }
  for (const auto& [token, length] : longest) {
    if (IsBreaker(token)) continue;
    edits->push_back({token, 1.0f, -Charge(length - allowed_length_)});
  }
}

}  // namespace heddle::engine
