#include "engine/draft/network_drafter.h"

#include <algorithm>
#include <utility>

namespace heddle::engine {
namespace {

// As if so many tokens had matched: a network's guesses are trusted alike at all places.
constexpr int32_t kLikeMatch = 32;

}  // namespace

void NetworkDrafter::TakeGuesses(SequenceId id, std::span<const TokenId> tokens,
                                 std::span<const float> probabilities) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  found->second->tokens.assign(tokens.begin(), tokens.end());
  found->second->probabilities.assign(probabilities.begin(), probabilities.end());
}

void NetworkDrafter::Begin(SequenceId id, const DraftScope&, std::span<const TokenId>,
                           std::span<const TokenId>) {
  sequences_.insert_or_assign(id, std::make_unique<Sequence>());
}

void NetworkDrafter::Append(SequenceId id, std::span<const TokenId> tokens) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  for (size_t i = 0; i < std::min(tokens.size(), sequence.tokens.size()); ++i) {
    const bool is_right = sequence.tokens[i] == tokens[i];
    const size_t place = std::min(i, verdict_.tried.size() - 1);
    ++verdict_.tried[place];
    verdict_.right[place] += is_right ? 1 : 0;
    if (!is_right) break;
  }
  sequence.record.Learn(tokens, &acceptance_);
  sequence.tokens.clear();
  sequence.probabilities.clear();
}

void NetworkDrafter::Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) {
  tree->Clear();
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  const size_t count = std::min(sequence.tokens.size(), static_cast<size_t>(max_tokens));
  sequence.record.Propose(std::span(sequence.tokens).first(count),
                          std::span(sequence.probabilities).first(count), kLikeMatch, acceptance_,
                          tree);
  if (!proposes_) tree->Clear();
}

void NetworkDrafter::Verified(SequenceId, int32_t num_proposed, int32_t num_accepted) {
  verdict_.drafted += num_proposed;
  verdict_.accepted += num_accepted;
}

void NetworkDrafter::End(SequenceId id, bool) { sequences_.erase(id); }

}  // namespace heddle::engine
