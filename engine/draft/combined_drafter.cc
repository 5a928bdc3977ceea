#include "engine/draft/combined_drafter.h"

#include <utility>

#include "engine/draft/acceptance.h"
#include "engine/draft/prediction_drafter.h"

namespace heddle::engine {

CombinedDrafter::CombinedDrafter(std::vector<std::unique_ptr<Drafter>> drafters)
    : drafters_(std::move(drafters)) {}

void CombinedDrafter::Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
                            std::span<const TokenId> prediction) {
  for (const auto& drafter : drafters_) drafter->Begin(id, scope, prompt, prediction);
}

void CombinedDrafter::Append(SequenceId id, std::span<const TokenId> tokens) {
  for (const auto& drafter : drafters_) drafter->Append(id, tokens);
}

void CombinedDrafter::Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) {
  tree->Clear();
  float best = 0.0f;
  for (size_t i = 0; i < drafters_.size(); ++i) {
    drafters_[i]->Propose(id, max_tokens, &candidate_);
    const float gain = ExpectedGain(candidate_);
    if (gain <= best) continue;
    best = gain;
    std::swap(*tree, candidate_);
    taken_[id] = i;
  }
}

void CombinedDrafter::Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) {
  const auto taken = taken_.find(id);
  if (taken == taken_.end()) return;
  Drafter& drafter = *drafters_[taken->second];
  const auto kind = static_cast<size_t>(drafter.kind());
  counts_.drafted[kind] += num_proposed;
  counts_.accepted[kind] += num_accepted;
  drafter.Verified(id, num_proposed, num_accepted);
}

void CombinedDrafter::End(SequenceId id, bool finished) {
  taken_.erase(id);
  for (const auto& drafter : drafters_) drafter->End(id, finished);
}

std::unique_ptr<Drafter> MakeDrafter(const DrafterOptions& options,
                                     std::unique_ptr<Drafter> network) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<PredictionDrafter>());
  if (options.suffix) drafters.push_back(std::make_unique<SuffixDrafter>(options.suffix_options));
  if (options.ngram) drafters.push_back(std::make_unique<NgramDrafter>(options.ngram_options));
  if (network != nullptr) drafters.push_back(std::move(network));
  return std::make_unique<CombinedDrafter>(std::move(drafters));
}

}  // namespace heddle::engine
