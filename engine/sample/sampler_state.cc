#include "engine/sample/sampler_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace heddle::engine {
namespace {

// Below it the likeliest token is taken: 1 / temperature has to stay finite (vLLM's limit).
constexpr float kLeastTemperature = 1e-5f;
// Work for the mask of one row of a draft, on the engine's thread: some 0.2 ms at most. Masks of
// most places are found in a tenth of it.
constexpr int64_t kDraftMaskWork = 10'000;

}  // namespace

void SamplerState::Begin(const SequenceBegin& begin,
                         std::shared_ptr<grammar::CompiledGrammar> grammar) {
  Sequence sequence;
  sequence.params = begin.sampling;
  const SamplingParams& params = sequence.params;
  sequence.counts_tokens = params.counts_tokens();
  if (params.has_dry()) sequence.history.dry.emplace(params, begin.prompt);
  sequence.has_edits = params.has_penalties() || !params.logit_bias.empty() ||
                       (params.min_tokens > 0 && !params.min_tokens_banned.empty()) ||
                       !params.bad_words.empty();
  for (const std::vector<TokenId>& word : params.bad_words) {
    sequence.recent_limit = std::max(sequence.recent_limit, word.size() - 1);
  }
  if (params.repetition_penalty != 1.0f) {
    for (TokenId token : begin.prompt) sequence.history.counts.try_emplace(token, 0);
  }
  if (grammar != nullptr) {
    sequence.matcher.emplace(std::move(grammar), /*forces=*/params.bad_words.empty());
    sequence.jumps = params.num_logprobs < 0;
    sequence.mask = sequence.matcher->KnownMask();
    if (sequence.mask == nullptr) Search(&sequence);
  }
  const bool fresh = sequences_.insert_or_assign(begin.id, std::move(sequence)).second;
  HEDDLE_CHECK(fresh, "a live sequence began twice");
}

void SamplerState::End(SequenceId id) {
  auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  if (it->second.search != nullptr) ahead_.Drop(it->second.search.get());
  sequences_.erase(it);
}

const SamplerState::Sequence& SamplerState::At(SequenceId id) const {
  auto it = sequences_.find(id);
  HEDDLE_CHECK(it != sequences_.end(), "a plan samples a sequence that never began");
  return it->second;
}

kernels::SampleRowParams SamplerState::Row(const SampleRow& sample, int32_t logit_row) {
  const Sequence& sequence = At(sample.id);
  return RowOf(sequence, sequence.history, sample.position, logit_row);
}

kernels::SampleRowParams SamplerState::DraftRow(const SampleRow& sample,
                                                std::span<const TokenId> drafted,
                                                int32_t logit_row) {
  const Sequence& sequence = At(sample.id);
  if (sequence.has_edits) {
    if (drafted.size() == 1) draft_ = sequence.history;
    Count(drafted.back(), sequence, &draft_);
  }
  return RowOf(sequence, draft_, sample.position + static_cast<Position>(drafted.size()),
               logit_row);
}

std::optional<kernels::SampleRowParams> SamplerState::GuessRow(const SampleRow& next,
                                                               std::span<const TokenId> guessed,
                                                               int32_t logit_row) {
  const Sequence& sequence = At(next.id);
  if (sequence.has_edits) {
    draft_ = sequence.history;
    for (TokenId token : guessed) Count(token, sequence, &draft_);
  }
  kernels::SampleRowParams row =
      RowOf(sequence, draft_, next.position + static_cast<Position>(guessed.size()), logit_row);
  if (!sequence.matcher) return row;
  if (sequence.mask == nullptr || sequence.failure != DrawFailure::kNone) return std::nullopt;
  guess_masks_.clear();
  DraftMasks(next.id, guessed, &guess_masks_);
  if (guess_masks_.size() <= guessed.size()) return std::nullopt;
  row.allowed = guess_masks_.back();
  return row;
}

kernels::SampleRowParams SamplerState::RowOf(const Sequence& sequence, const History& history,
                                             Position position, int32_t logit_row) {
  const SamplingParams& params = sequence.params;
  kernels::SampleRowParams row{params};
  if (row.temperature < kLeastTemperature) row.temperature = 0.0f;
  row.logit_row = logit_row;
  row.seed = params.seed;
  row.counter = static_cast<uint64_t>(position);
  row.num_top = params.num_logprobs;
  row.edits = BuildEdits(sequence, history);
  return row;
}

bool SamplerState::RejectsGuesses(SequenceId id) const {
  const SamplingParams& params = At(id).params;
  return params.rejects_guesses && params.temperature >= kLeastTemperature;
}

bool SamplerState::NeedsDraw(SequenceId id) const {
  const Sequence& sequence = At(id);
  return sequence.matcher || sequence.params.NeedsLastDraw(sequence.history.num_generated + 1);
}

bool SamplerState::HasPassed(const SampleRow& sample) const {
  return sample.position < At(sample.id).next_position;
}

bool SamplerState::IsAhead(const SampleRow& sample) const {
  const Position next = At(sample.id).next_position;
  return next > 0 && sample.position > next;
}

void SamplerState::LeaveOut(const SampleRow& sample) {
  auto it = sequences_.find(sample.id);
  if (it != sequences_.end()) it->second.next_position = sample.position;
}

SamplerState::Allowance SamplerState::Allowed(SequenceId id,
                                              std::chrono::steady_clock::time_point deadline) {
  auto it = sequences_.find(id);
  HEDDLE_CHECK(it != sequences_.end(), "a mask of a sequence that never began");
  Sequence& sequence = it->second;
  const bool is_lost = sequence.search == nullptr && sequence.mask == nullptr;
  if (sequence.matcher && is_lost && sequence.failure == DrawFailure::kNone) Search(&sequence);
  if (sequence.search != nullptr) {
    if (!ahead_.IsOver(*sequence.search, deadline)) return {.is_known = false};
    TakeFound(&sequence);
  }
  if (!sequence.matcher) return {};
  if (sequence.failure != DrawFailure::kNone) return {.failure = sequence.failure};
  return {.mask = sequence.mask->data()};
}

int32_t SamplerState::DraftMasks(SequenceId id, std::span<const TokenId> drafted,
                                 std::vector<const uint32_t*>* masks) {
  const Sequence& sequence = At(id);
  const auto num_rows = static_cast<int32_t>(drafted.size()) + 1;
  if (!sequence.matcher) return num_rows;
  grammar::Matcher matcher = *sequence.matcher;
  masks->assign(1, sequence.mask->data());
  while (static_cast<int32_t>(masks->size()) < num_rows) {
    const TokenId token = drafted[masks->size() - 1];
    const uint32_t word = masks->back()[static_cast<size_t>(token) / 32];
    if ((word >> (token % 32) & 1) == 0 || !matcher.TryAccept(token)) break;
    const MaskAhead::Mask found = matcher.Find(kDraftMaskWork, grammar::Matcher::IfBusy::kLater);
    if (!found.ok() || *found == nullptr) break;
    draft_masks_.push_back(*found);
    masks->push_back(draft_masks_.back()->data());
  }
  return static_cast<int32_t>(masks->size());
}

// Takes the mask of a search that is over. A sequence whose grammar is too ambiguous, or demands
// what the vocabulary has not, ends in an error, and not in a text that the grammar does not
// derive.
void SamplerState::TakeFound(Sequence* sequence) {
  const MaskAhead::Mask found = sequence->search->mask();
  sequence->matcher = sequence->search->TakeMatcher();
  sequence->search = nullptr;
  sequence->untaken.clear();
  if (found.ok()) {
    sequence->mask = *found;
  } else {
    sequence->failure =
        absl::IsInternal(found.status()) ? DrawFailure::kNoTokenFits : DrawFailure::kTooAmbiguous;
  }
}

std::span<const TokenId> SamplerState::Accept(const SampleRow& sample, TokenId token) {
  forced_.clear();
  auto it = sequences_.find(sample.id);
  if (it == sequences_.end()) return forced_;
  Sequence& sequence = it->second;
  Count(token, sequence, &sequence.history);
  sequence.next_position = sample.position + 1;
  if (!sequence.matcher || token < 0) return forced_;
  sequence.mask = nullptr;
  if (sequence.search != nullptr) {  // it is for the place before the token
    ahead_.Drop(sequence.search.get());
    sequence.search = nullptr;
  }
  if (sequence.untaken.empty() && sequence.matcher->TryAccept(token)) {
    if (sequence.jumps) Jump(&sequence);
    sequence.mask = sequence.matcher->KnownMask();
  } else {
    sequence.untaken.push_back(token);
  }
  if (sequence.mask == nullptr) without_mask_.push_back(sample.id);
  return forced_;
}

// Appends forced tokens that are found within a moment; others are left to the masks, which allow
// the forced tokens alone.
void SamplerState::Jump(Sequence* sequence) {
  const std::span<const TokenId> found = sequence->matcher->TryForced();
  const std::vector<TokenId> tokens(found.begin(), found.end());
  for (TokenId token : tokens) {
    if (!sequence->matcher->TryAccept(token)) break;
    forced_.push_back(token);
    Count(token, *sequence, &sequence->history);
  }
  sequence->next_position += static_cast<Position>(forced_.size());
}

void SamplerState::FindMasks() {
  for (SequenceId id : without_mask_) {
    auto it = sequences_.find(id);
    if (it == sequences_.end()) continue;
    Sequence& sequence = it->second;
    if (sequence.search == nullptr && sequence.mask == nullptr) Search(&sequence);
  }
  without_mask_.clear();
}

void SamplerState::Search(Sequence* sequence) {
  sequence->search = ahead_.Find(*sequence->matcher, sequence->untaken);
}

void SamplerState::Count(TokenId token, const Sequence& sequence, History* history) {
  ++history->num_generated;
  if (sequence.counts_tokens) ++history->counts[token];
  if (history->dry && token >= 0) history->dry->Append(token);
  if (sequence.recent_limit == 0) return;
  if (history->recent.size() == sequence.recent_limit) {
    history->recent.erase(history->recent.begin());
  }
  history->recent.push_back(token);
}

void SamplerState::BanBadWords(const Sequence& sequence, const History& history,
                               std::vector<kernels::LogitEdit>* edits) {
  const std::vector<TokenId>& recent = history.recent;
  for (const std::vector<TokenId>& word : sequence.params.bad_words) {
    const size_t before = word.size() - 1;
    if (before > recent.size() || !std::equal(word.begin(), word.end() - 1,
                                              recent.end() - static_cast<std::ptrdiff_t>(before))) {
      continue;
    }
    edits->push_back({word.back(), 1.0f, -std::numeric_limits<float>::infinity()});
  }
}

std::span<const kernels::LogitEdit> SamplerState::BuildEdits(const Sequence& sequence,
                                                             const History& history) {
  if (!sequence.has_edits) return {};
  if (edits_used_ == edits_.size()) edits_.emplace_back();
  std::vector<kernels::LogitEdit>& edits = edits_[edits_used_++];
  edits.clear();
  const SamplingParams& params = sequence.params;
  for (const auto& [token, count] : history.counts) {
    const float presence = count > 0 ? params.presence_penalty : 0.0f;
    edits.push_back({token, params.repetition_penalty,
                     -presence - params.frequency_penalty * static_cast<float>(count)});
  }
  if (history.dry) history.dry->AddEdits(&edits);
  for (const auto& [token, bias] : params.logit_bias) edits.push_back({token, 1.0f, 0.0f, bias});
  // Where a grammar has come to its end there is nothing else to draw.
  if (history.num_generated < params.min_tokens && !sequence.matcher) {
    for (TokenId token : params.min_tokens_banned) {
      edits.push_back({token, 1.0f, -std::numeric_limits<float>::infinity()});
    }
  }
  BanBadWords(sequence, history, &edits);
  // The kernel takes one edit per token, in any order: merge those that name the same.
  std::sort(edits.begin(), edits.end(), [](const auto& a, const auto& b) {
    return a.token != b.token ? a.token < b.token : a.scale_div > b.scale_div;
  });
  size_t kept = 0;
  for (size_t i = 0; i < edits.size(); ++i) {
    if (kept > 0 && edits[kept - 1].token == edits[i].token) {
      edits[kept - 1].scale_div *= edits[i].scale_div;
      edits[kept - 1].add += edits[i].add;
      edits[kept - 1].bias += edits[i].bias;
    } else {
      edits[kept++] = edits[i];
    }
  }
  edits.resize(kept);
  return edits;
}

}  // namespace heddle::engine
