#include "engine/draft/ngram_drafter.h"

#include <utility>

namespace heddle::engine {

NgramDrafter::NgramDrafter(const NgramOptions& options) {
  index_options_.orders = {options.min_match};
  // The longest match is looked for first: among many short ones it might not be reached.
  if (options.max_match > options.min_match) index_options_.orders.push_back(options.max_match);
  index_options_.max_match = options.max_match;
  index_options_.max_tokens = options.max_history_tokens;
}

void NgramDrafter::Begin(SequenceId id, const DraftScope&, std::span<const TokenId> prompt,
                         std::span<const TokenId>) {
  sequences_.insert_or_assign(
      id, std::make_unique<Sequence>(Sequence{HistoryIndex(index_options_, prompt), {}}));
}

void NgramDrafter::Append(SequenceId id, std::span<const TokenId> tokens) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  found->second->record.Learn(tokens, &acceptance_);
  found->second->history.Append(tokens);
}

void NgramDrafter::Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) {
  tree->Clear();
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  sequence.history.Find(&found_);
  if (found_.ends.size() > 1) found_.ends.erase(found_.ends.begin() + 1, found_.ends.end());
  VoteContinuation(sequence.history.index(), found_, max_tokens, &tokens_, &shares_);
  sequence.record.Propose(tokens_, shares_, found_.length, acceptance_, tree);
}

// Append says what became of every proposal, verified or not.
void NgramDrafter::Verified(SequenceId, int32_t, int32_t) {}

void NgramDrafter::End(SequenceId id, bool) { sequences_.erase(id); }

}  // namespace heddle::engine
