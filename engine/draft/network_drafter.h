// Proposes what the drafter beside the model has guessed (engine/model/draft_network.h) behind the
// step before. What it knows of a guess is the network's own probability; how far that can be
// trusted is learnt like that of other drafters (acceptance.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/draft/acceptance.h"
#include "engine/draft/drafter.h"

namespace heddle::engine {

class NetworkDrafter : public Drafter {
 public:
  // The network's guesses at what follows the tokens given so far. They are forgotten with the next
  // Append.
  void TakeGuesses(SequenceId id, std::span<const TokenId> tokens,
                   std::span<const float> probabilities);

  // Whether it proposes its guesses; true unless set. They are compared with what comes in any
  // case.
  void set_proposes(bool proposes) { proposes_ = proposes; }

  void Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
             std::span<const TokenId> prediction) override;
  void Append(SequenceId id, std::span<const TokenId> tokens) override;
  void Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) override;
  void Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) override;
  void End(SequenceId id, bool finished) override;
  DrafterKind kind() const override { return DrafterKind::kNetwork; }

  // How many of its guesses were verified and accepted since the last call.
  struct Verdict {
    int32_t drafted = 0;   // that were verified
    int32_t accepted = 0;  // of these
    // By place in the chain, verified or not: how often the ones before it were right, and how
    // often it was right, too.
    std::array<int32_t, 16> tried{};
    std::array<int32_t, 16> right{};
  };
  Verdict TakeVerdict() { return std::exchange(verdict_, {}); }

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<float> probabilities;
    ProposalRecord record;
  };

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  Acceptance acceptance_;
  Verdict verdict_;
  bool proposes_ = true;
};

}  // namespace heddle::engine
