// Asks several drafters and takes, for each sequence and step, the tree that is expected to gain
// most tokens. All of them see every token, so each knows how good its own guesses were.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/draft/drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/draft/suffix_drafter.h"

namespace heddle::engine {

class CombinedDrafter : public Drafter {
 public:
  // Where expectations are equal, the earlier drafter's tree is taken.
  explicit CombinedDrafter(std::vector<std::unique_ptr<Drafter>> drafters);

  void Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
             std::span<const TokenId> prediction) override;
  void Append(SequenceId id, std::span<const TokenId> tokens) override;
  void Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) override;
  // Told to the drafter whose tree was taken.
  void Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) override;
  void End(SequenceId id, bool finished) override;
  DrafterCounts counts() const override { return counts_; }

 private:
  std::vector<std::unique_ptr<Drafter>> drafters_;
  absl::flat_hash_map<SequenceId, size_t> taken_;  // whose tree each sequence was given last
  DrafterCounts counts_;
  DraftTree candidate_;  // scratch
};

// The drafters that --speculate names.
struct DrafterOptions {
  bool ngram = false;
  bool suffix = false;
  NgramOptions ngram_options;
  SuffixOptions suffix_options;
};

// The named drafters, and one that follows predicted outputs. `network`: one more, or null.
std::unique_ptr<Drafter> MakeDrafter(const DrafterOptions& options,
                                     std::unique_ptr<Drafter> network = nullptr);

}  // namespace heddle::engine
