// The draws of a step: from which rows, with which parameters and masks, and what becomes of
// them.
#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/check.h"
#include "engine/model/local_executor.h"

namespace heddle::engine {
namespace {

// The proposed tokens of a sample's rows behind the first.
std::span<const TokenId> DraftOf(const StepPlan& plan, const SampleRow& sample) {
  return std::span(plan.token_ids)
      .subspan(static_cast<size_t>(sample.row) + 1, static_cast<size_t>(sample.num_rows) - 1);
}

}  // namespace

// Starts every sample with no tokens and all its rows; drawing fills in the tokens.
void LocalExecutor::BeginGains(const StepPlan& plan, StepResult* result) {
  for (const SampleRow& sample : plan.samples) {
    HEDDLE_CHECK(sample.num_rows >= 1 && sample.num_rows <= 1 + kMaxDraftTokens,
                 "a sample has more rows than a draft may have");
    result->gains.push_back({.id = sample.id, .rows_kept = sample.num_rows});
  }
}

// Lists the draws of the plan in the order of their rows, and fills logit_rows.
void LocalExecutor::BuildDraws(Flight* flight) {
  const StepPlan& plan = *flight->plan;
  std::vector<DrawnRow>& draws = flight->draws;
  draws.clear();
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    for (int32_t row = 0; row < plan.samples[i].num_rows; ++row) {
      draws.push_back({.row = plan.samples[i].row + row,
                       .index = static_cast<int32_t>(i),
                       .row_of_draft = row});
    }
  }
  for (size_t i = 0; i < plan.scores.size(); ++i) {
    draws.push_back(
        {.row = plan.scores[i].row, .index = static_cast<int32_t>(i), .is_score = true});
  }
  std::sort(draws.begin(), draws.end(),
            [](const DrawnRow& a, const DrawnRow& b) { return a.row < b.row; });
  std::vector<int32_t>& logit_rows = flight->logit_rows;
  logit_rows.clear();
  for (DrawnRow& draw : draws) {
    if (logit_rows.empty() || logit_rows.back() != draw.row) logit_rows.push_back(draw.row);
    draw.logit_row = static_cast<int32_t>(logit_rows.size()) - 1;
  }
  NumberDraws(flight);
  flight->n_drawn_rows = static_cast<int32_t>(logit_rows.size());
  for (const PoolRows& pool : plan.pools) {
    for (int32_t i = 0; i < pool.num_rows; ++i) logit_rows.push_back(pool.row + i);
  }
}

void LocalExecutor::NumberDraws(Flight* flight) {
  flight->draw_of_sample.assign(flight->plan->samples.size(), -1);
  for (size_t i = 0; i < flight->draws.size(); ++i) {
    const DrawnRow& draw = flight->draws[i];
    if (!draw.is_score && draw.row_of_draft == 0)
      flight->draw_of_sample[draw.index] = static_cast<int32_t>(i);
  }
}

void LocalExecutor::BuildSampleRows(Flight* flight) {
  const StepPlan& plan = *flight->plan;
  sampler_.ResetEdits();
  flight->sample_rows.clear();
  flight->max_top = 0;
  for (const DrawnRow& draw : flight->draws) {
    const int32_t row = draw.logit_row % parts_.logit_rows;
    if (draw.is_score) {
      const ScoreRow& score = plan.scores[draw.index];
      flight->sample_rows.push_back(
          {.logit_row = row, .num_top = std::max(0, score.num_top), .forced_token = score.target});
    } else {
      const SampleRow& sample = plan.samples[draw.index];
      const auto drafted = DraftOf(plan, sample).first(static_cast<size_t>(draw.row_of_draft));
      flight->sample_rows.push_back(drafted.empty() ? sampler_.Row(sample, row)
                                                    : sampler_.DraftRow(sample, drafted, row));
      if (drafts_ != nullptr) {
        drafts_->shares().AddProposal(sample, drafted, &flight->sample_rows.back());
      }
    }
    flight->max_top = std::max(flight->max_top, flight->sample_rows.back().num_top);
  }
  const size_t count = flight->draws.size();
  flight->tokens.resize(count);
  flight->logprobs.resize(count);
  flight->top_tokens.resize(count * flight->max_top);
  flight->top_logprobs.resize(count * flight->max_top);
}

// Collects the masks, which are computed while the forward runs. It waits a moment for missing
// ones, and longer only if no other draw of the step would be delayed.
void LocalExecutor::FillMasks(Flight* flight) {
  const auto now = std::chrono::steady_clock::now();
  size_t num_unknown = 0;
  size_t num_samples = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const auto deadline = pass == 0
                              ? now
                              : now + (num_unknown < num_samples ? mask_patience_.beside_others
                                                                 : mask_patience_.alone);
    for (size_t i = 0; i < flight->draws.size(); ++i) {
      DrawnRow& draw = flight->draws[i];
      if (draw.is_score || draw.row_of_draft > 0 || (pass > 0 && draw.is_known)) continue;
      const SamplerState::Allowance allowance =
          sampler_.Allowed(flight->plan->samples[draw.index].id, deadline);
      flight->sample_rows[i].allowed = allowance.mask;
      draw.is_known = allowance.is_known;
      draw.failure = allowance.failure;
      if (pass > 0) continue;
      ++num_samples;
      num_unknown += allowance.is_known ? 0 : 1;
    }
    if (num_unknown == 0) break;
  }
  CutDrafts(flight);
  LeaveOut(flight);
}

// Finds the masks of the rows of drafts, and cuts a draft where its grammar ends it.
void LocalExecutor::CutDrafts(Flight* flight) {
  const StepPlan& plan = *flight->plan;
  for (size_t first = 0; first < flight->draws.size(); ++first) {
    const DrawnRow& draw = flight->draws[first];
    if (draw.is_score || draw.row_of_draft > 0) continue;
    const SampleRow& sample = plan.samples[draw.index];
    if (sample.num_rows == 1) continue;
    int32_t num_rows = 0;
    draft_masks_.clear();
    if (draw.is_known && draw.failure == DrawFailure::kNone) {
      num_rows = sampler_.DraftMasks(sample.id, DraftOf(plan, sample), &draft_masks_);
    }
    for (int32_t row = 1; row < sample.num_rows; ++row) {
      const size_t at = first + static_cast<size_t>(row);
      flight->draws[at].is_cut = row >= num_rows;
      if (row < static_cast<int32_t>(draft_masks_.size())) {
        flight->sample_rows[at].allowed = draft_masks_[static_cast<size_t>(row)];
      }
    }
  }
}

// Takes out the draws whose masks are not ready, and those that can never be drawn.
void LocalExecutor::LeaveOut(Flight* flight) {
  size_t kept = 0;
  for (size_t i = 0; i < flight->draws.size(); ++i) {
    const DrawnRow& draw = flight->draws[i];
    if (draw.is_cut) continue;
    if (draw.is_score || (draw.is_known && draw.failure == DrawFailure::kNone)) {
      flight->draws[kept] = draw;
      flight->sample_rows[kept++] = flight->sample_rows[i];
    } else if (draw.is_known) {
      flight->failed.emplace_back(draw.index, draw.failure);
    } else {
      sampler_.LeaveOut(flight->plan->samples[draw.index]);
      flight->left_out.push_back(draw.index);
    }
  }
  if (kept == flight->draws.size()) return;
  flight->draws.resize(kept);
  flight->sample_rows.resize(kept);
  NumberDraws(flight);
}

void LocalExecutor::Report(const Flight& flight, StepResult* result) {
  for (int32_t index : flight.left_out) result->gains[index].rows_kept = 0;
  for (const auto& [index, failure] : flight.failed) result->gains[index].failure = failure;
  for (size_t i = 0; i < flight.draws.size(); ++i) {
    const DrawnRow& draw = flight.draws[i];
    if (draw.is_score) {
      Fill(flight, i, &result->scores[draw.index]);
    } else if (draw.row_of_draft == 0) {
      ReportSample(flight, i, result);
    }
  }
  sampler_.FindMasks();
}

void LocalExecutor::Fill(const Flight& flight, size_t i, SampledToken* out) {
  out->token = flight.tokens[i];
  out->logprob = flight.logprobs[i];
  out->top.clear();
  for (int32_t t = 0; t < flight.sample_rows[i].num_top; ++t) {
    const size_t at = i * flight.max_top + t;
    out->top.push_back({flight.top_tokens[at], flight.top_logprobs[at]});
  }
}

// Whether the i-th draw is one of the sample's: draws of rows that were cut are missing.
bool LocalExecutor::HasDraw(const Flight& flight, size_t i, int32_t sample) {
  return i < flight.draws.size() && !flight.draws[i].is_score && flight.draws[i].index == sample;
}

// Takes the tokens of a sample, whose first draw is the `first`-th. The draws of a draft's rows
// were made as if all proposed tokens before them were right: they count until the first that is
// not. A row from which no token can be drawn is forgotten behind tokens that were: the next step
// runs it again, as the first of its sample.
void LocalExecutor::ReportSample(const Flight& flight, size_t first, StepResult* result) {
  const int32_t index = flight.draws[first].index;
  const SampleRow& sample = flight.plan->samples[index];
  const std::span<const TokenId> draft = DraftOf(*flight.plan, sample);
  SequenceGain& gain = result->gains[index];
  gain.token_begin = static_cast<int32_t>(result->tokens.size());
  gain.rows_kept = 1;
  const auto add = [&](SampledToken&& token) {
    const auto next = static_cast<size_t>(gain.num_tokens++);  // row next + 1 may hold the token
    const bool is_row = gain.rows_kept == gain.num_tokens && next < draft.size();
    if (is_row && draft[next] == token.token) ++gain.rows_kept;
    result->tokens.push_back(std::move(token));
  };
  do {
    const auto row = static_cast<size_t>(gain.num_tokens);
    SampledToken drawn;
    Fill(flight, first + row, &drawn);
    const TokenId token = drawn.token;
    if (token < 0 && gain.num_tokens > 0) break;
    add(std::move(drawn));
    if (token < 0) break;
    const Position position = sample.position + static_cast<Position>(row);
    for (TokenId forced : sampler_.Accept({sample.id, sample.row, position}, token)) {
      add({.token = forced});
    }
  } while (gain.rows_kept > gain.num_tokens &&
           HasDraw(flight, first + static_cast<size_t>(gain.num_tokens), index));
  gain.rows_kept = std::min(gain.rows_kept, gain.num_tokens);
}

}  // namespace heddle::engine
