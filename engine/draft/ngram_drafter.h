// Prompt lookup: proposes what followed the latest earlier occurrence of the sequence's last
// tokens, in its own prompt and answer. Source: Saxena, "Prompt Lookup Decoding", 2023.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "engine/draft/acceptance.h"
#include "engine/draft/drafter.h"
#include "engine/draft/history_index.h"

namespace heddle::engine {

struct NgramOptions {
  int32_t min_match = 2;  // vLLM's prompt_lookup_min; >= 1
  int32_t max_match = 5;  // prompt_lookup_max; >= min_match; longer matches are not preferred
  int64_t max_history_tokens = 65536;  // per sequence; a power of two
};

class NgramDrafter : public Drafter {
 public:
  explicit NgramDrafter(const NgramOptions& options);

  void Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
             std::span<const TokenId> prediction) override;
  void Append(SequenceId id, std::span<const TokenId> tokens) override;
  void Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) override;
  void Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) override;
  void End(SequenceId id, bool finished) override;
  DrafterKind kind() const override { return DrafterKind::kNgram; }

 private:
  struct Sequence {
    HistoryIndex history;
    ProposalRecord record;
  };

  TokenIndex::Options index_options_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  Acceptance acceptance_;
  TokenIndex::Occurrences found_;  // scratch, as are the next two
  std::vector<TokenId> tokens_;
  std::vector<float> shares_;
};

}  // namespace heddle::engine
