#include "engine/sample/sampler_state.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace heddle::engine {
namespace {

// Below it the likeliest token is taken: 1 / temperature has to stay finite (vLLM's limit).
constexpr float kLeastTemperature = 1e-5f;

}  // namespace

void SamplerState::Begin(const SequenceBegin& begin) {
  Sequence sequence;
  sequence.params = begin.sampling;
  const SamplingParams& params = sequence.params;
  sequence.counts_tokens = params.has_penalties();
  sequence.has_edits = sequence.counts_tokens || !params.logit_bias.empty() ||
                       (params.min_tokens > 0 && !params.min_tokens_banned.empty()) ||
                       !params.bad_words.empty();
  for (const std::vector<TokenId>& word : params.bad_words) {
    sequence.recent_limit = std::max(sequence.recent_limit, word.size() - 1);
  }
  if (params.repetition_penalty != 1.0f) {
    for (TokenId token : begin.prompt) sequence.counts.try_emplace(token, 0);
  }
  if (params.grammar != nullptr) {
    sequence.matcher.emplace(params.grammar, /*forces=*/params.bad_words.empty());
    sequence.jumps = params.num_logprobs < 0;
  }
  const bool fresh = sequences_.insert_or_assign(begin.id, std::move(sequence)).second;
  HEDDLE_CHECK(fresh, "a live sequence began twice");
}

void SamplerState::End(SequenceId id) { sequences_.erase(id); }

kernels::SampleRowParams SamplerState::Row(const SampleRow& sample, int32_t logit_row) {
  auto it = sequences_.find(sample.id);
  HEDDLE_CHECK(it != sequences_.end(), "a plan samples a sequence that never began");
  const SamplingParams& params = it->second.params;
  return {.logit_row = logit_row,
          .temperature = params.temperature < kLeastTemperature ? 0.0f : params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .typical_p = params.typical_p,
          .seed = params.seed,
          .counter = static_cast<uint64_t>(sample.position),
          .num_top = params.num_logprobs,
          .edits = BuildEdits(it->second)};
}

bool SamplerState::NeedsDraw(SequenceId id) const {
  auto it = sequences_.find(id);
  HEDDLE_CHECK(it != sequences_.end(), "a plan samples a sequence that never began");
  return it->second.params.NeedsLastDraw(it->second.num_generated + 1);
}

const uint32_t* SamplerState::Allowed(SequenceId id) {
  auto it = sequences_.find(id);
  HEDDLE_CHECK(it != sequences_.end(), "a mask of a sequence that never began");
  Sequence& sequence = it->second;
  if (!sequence.matcher) return nullptr;
  if (sequence.mask == nullptr) {
    MaskAhead::Mask mask =
        sequence.mask_to_come.valid() ? sequence.mask_to_come.get() : sequence.matcher->Mask();
    if (mask.ok()) sequence.mask = *std::move(mask);
  }
  if (sequence.mask != nullptr) return sequence.mask->data();
  // Too ambiguous a grammar, or a vocabulary without what must follow: the sequence ends in an
  // error, and not in a text that the grammar does not derive.
  nothing_ = sequence.params.grammar->vocabulary().EmptyMask();
  return nothing_.data();
}

void SamplerState::Accept(SequenceId id, TokenId token, std::vector<TokenId>* forced) {
  forced->clear();
  auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  Count(token, &sequence);
  if (!sequence.matcher || token < 0) return;
  sequence.matcher->Accept(token);
  if (sequence.jumps) Jump(&sequence, forced);
  sequence.mask_to_come = {};
  sequence.mask = sequence.matcher->KnownMask();
  if (sequence.mask == nullptr) without_mask_.push_back(id);
}

void SamplerState::Jump(Sequence* sequence, std::vector<TokenId>* forced) {
  const std::span<const TokenId> tokens = sequence->matcher->Forced();
  forced->assign(tokens.begin(), tokens.end());
  for (TokenId token : *forced) {
    Count(token, sequence);
    HEDDLE_CHECK(sequence->matcher->Accept(token), "a grammar forces what it does not derive");
  }
}

void SamplerState::FindMasks() {
  for (SequenceId id : without_mask_) {
    auto it = sequences_.find(id);
    if (it == sequences_.end() || it->second.matcher->ended()) continue;
    it->second.mask_to_come = ahead_.Find(*it->second.matcher);
  }
  without_mask_.clear();
}

void SamplerState::Count(TokenId token, Sequence* sequence) {
  ++sequence->num_generated;
  if (sequence->counts_tokens) ++sequence->counts[token];
  if (sequence->recent_limit == 0) return;
  if (sequence->recent.size() == sequence->recent_limit) {
    sequence->recent.erase(sequence->recent.begin());
  }
  sequence->recent.push_back(token);
}

void SamplerState::BanBadWords(const Sequence& sequence, std::vector<kernels::LogitEdit>* edits) {
  const std::vector<TokenId>& recent = sequence.recent;
  for (const std::vector<TokenId>& word : sequence.params.bad_words) {
    const size_t before = word.size() - 1;
    if (before > recent.size() || !std::equal(word.begin(), word.end() - 1,
                                              recent.end() - static_cast<std::ptrdiff_t>(before))) {
      continue;
    }
    edits->push_back({word.back(), 1.0f, -std::numeric_limits<float>::infinity()});
  }
}

std::span<const kernels::LogitEdit> SamplerState::BuildEdits(const Sequence& sequence) {
  if (!sequence.has_edits) return {};
  if (edits_used_ == edits_.size()) edits_.emplace_back();
  std::vector<kernels::LogitEdit>& edits = edits_[edits_used_++];
  edits.clear();
  const SamplingParams& params = sequence.params;
  for (const auto& [token, count] : sequence.counts) {
    const float presence = count > 0 ? params.presence_penalty : 0.0f;
    edits.push_back({token, params.repetition_penalty,
                     -presence - params.frequency_penalty * static_cast<float>(count)});
  }
  for (const auto& [token, bias] : params.logit_bias) edits.push_back({token, 1.0f, 0.0f, bias});
  // Where a grammar has come to its end there is nothing else to draw.
  if (sequence.num_generated < params.min_tokens && !sequence.matcher) {
    for (TokenId token : params.min_tokens_banned) {
      edits.push_back({token, 1.0f, -std::numeric_limits<float>::infinity()});
    }
  }
  BanBadWords(sequence, &edits);
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
