// Proposes what the client predicts (OpenAI's predicted output): prediction_follower.h.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "engine/draft/acceptance.h"
#include "engine/draft/drafter.h"
#include "engine/draft/prediction_follower.h"

namespace heddle::engine {

class PredictionDrafter : public Drafter {
 public:
  void Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
             std::span<const TokenId> prediction) override;
  void Append(SequenceId id, std::span<const TokenId> tokens) override;
  void Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) override;
  void Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) override;
  void End(SequenceId id, bool finished) override;
  DrafterKind kind() const override { return DrafterKind::kPrediction; }

 private:
  struct Sequence {
    PredictionFollower follower;
    ProposalRecord record;
  };

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  Acceptance acceptance_;
  std::vector<float> shares_;  // scratch
};

}  // namespace heddle::engine
