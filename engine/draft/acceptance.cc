#include "engine/draft/acceptance.h"

#include <algorithm>
#include <numeric>

namespace heddle::engine {
namespace {

// Guesses after which a sequence's own experience weighs as much as that of all others.
constexpr double kPriorWeight = 4;
// Experience before any guess, by class: longer matches are continued more often.
constexpr std::array<float, Acceptance::kClasses> kFirstFactors = {0.2f,  0.3f,  0.4f, 0.6f,
                                                                   0.75f, 0.85f, 0.92f};
// Guesses that are remembered of a class; then old ones fade.
constexpr double kMemory = 64;
// Nothing is certain: a factor of 1 would make chains of any length look worth their rows.
constexpr float kLargestFactor = 0.98f;
constexpr float kSmallestFactor = 0.005f;

}  // namespace

int Acceptance::ClassOf(int32_t match_length) {
  constexpr std::array<int32_t, kClasses - 1> kLargest = {0, 1, 2, 4, 8, 16};
  return static_cast<int>(std::lower_bound(kLargest.begin(), kLargest.end(), match_length) -
                          kLargest.begin());
}

void Acceptance::Count(int32_t match_length, float share, bool hit) {
  tallies_[static_cast<size_t>(ClassOf(match_length))].Add(static_cast<double>(share), hit ? 1 : 0,
                                                           kMemory);
}

float Acceptance::Factor(int32_t match_length, const Acceptance* all) const {
  const auto index = static_cast<size_t>(ClassOf(match_length));
  const float before = all == nullptr ? kFirstFactors[index] : all->Factor(match_length, nullptr);
  const double factor = tallies_[index].Rate(static_cast<double>(before), kPriorWeight);
  return std::clamp(static_cast<float>(factor), kSmallestFactor, kLargestFactor);
}

void ProposalRecord::Propose(std::span<const TokenId> tokens, std::span<const float> shares,
                             int32_t match_length, const Acceptance& all, DraftTree* tree) {
  tokens_.assign(tokens.begin(), tokens.end());
  shares_.assign(shares.begin(), shares.end());
  num_known_ = 0;
  match_length_ = match_length;
  tree->Clear();
  float survival = 1.0f;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto place = static_cast<int32_t>(i);
    survival *= std::min(shares[i] * own_.Factor(match_length + place, &all), kLargestFactor);
    tree->Add(tokens[i], place - 1, survival);
  }
}

void ProposalRecord::Learn(std::span<const TokenId> tokens, Acceptance* all) {
  for (TokenId token : tokens) {
    if (num_known_ == tokens_.size()) return;
    const bool hit = tokens_[num_known_] == token;
    const int32_t length = match_length_ + static_cast<int32_t>(num_known_);
    own_.Count(length, shares_[num_known_], hit);
    all->Count(length, shares_[num_known_], hit);
    ++num_known_;
    if (!hit) num_known_ = tokens_.size();
  }
}

float ExpectedGain(const DraftTree& tree) {
  return std::accumulate(tree.survival.begin(), tree.survival.end(), 0.0f);
}

}  // namespace heddle::engine
