#include "engine/draft/prediction_drafter.h"

#include <algorithm>

namespace heddle::engine {

void PredictionDrafter::Begin(SequenceId id, const DraftScope&, std::span<const TokenId>,
                              std::span<const TokenId> prediction) {
  if (prediction.empty()) return;
  sequences_.insert_or_assign(
      id, std::make_unique<Sequence>(Sequence{PredictionFollower(prediction), {}}));
}

void PredictionDrafter::Append(SequenceId id, std::span<const TokenId> tokens) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  found->second->record.Learn(tokens, &acceptance_);
  found->second->follower.Append(tokens);
}

void PredictionDrafter::Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) {
  tree->Clear();
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  std::span<const TokenId> rest = sequence.follower.Rest();
  rest = rest.first(std::min(rest.size(), static_cast<size_t>(std::max(max_tokens, 0))));
  shares_.assign(rest.size(), 1.0f);
  sequence.record.Propose(rest, shares_, sequence.follower.match_length(), acceptance_, tree);
}

// Append says what became of every proposal, verified or not.
void PredictionDrafter::Verified(SequenceId, int32_t, int32_t) {}

void PredictionDrafter::End(SequenceId id, bool) { sequences_.erase(id); }

}  // namespace heddle::engine
