// Tokens that FakeExecutor draws, and the answers that this comes to, from their tokens alone
// (fake_executor.h).
#include <algorithm>

#include "base/status.h"
#include "tests/support/fake_executor.h"
#include "tests/support/fake_tokens.h"

namespace heddle::test {

using engine::SequenceSlice;
using engine::StepPlan;

std::vector<TokenId> FakeExecutor::Forced(TokenId token, int32_t vocab) {
  std::vector<TokenId> forced;
  for (TokenId i = 1; i <= token % 5 - 1; ++i) forced.push_back((token + i) % vocab);
  return forced;
}

absl::Status FakeExecutor::Draw(const StepPlan& plan, engine::StepResult* result) {
  for (const engine::SampleRow& sample : plan.samples) {
    auto it = live_.find(sample.id);
    if (it == live_.end()) return Broken(sample.id, "sampled but was not begun");
    if (sample.num_rows != 1) {
      HEDDLE_RETURN_IF_ERROR(DrawDraft(plan, sample, &it->second, result));
      continue;
    }
    const uint64_t history = row_history_[sample.row];
    if (plan.positions[sample.row] + 1 != sample.position) {
      return Broken(sample.id, "drawn for a position that does not follow its row");
    }
    engine::SequenceGain& gain = result->gains.emplace_back();
    gain = {.id = sample.id, .rows_kept = sample.num_rows};
    Live& live = it->second;
    if (sample.position < live.next_position) continue;  // forced tokens stand there
    gain.token_begin = static_cast<int32_t>(result->tokens.size());
    const TokenId token = TokenFor(history, live.sampling.seed, sample.position, limits_.vocab);
    result->tokens.push_back(Report(history, token, live.sampling.num_logprobs));
    if (IsConstrained(live.sampling)) {
      for (TokenId forced : Forced(token, limits_.vocab)) {
        result->tokens.emplace_back().token = forced;
      }
    }
    gain.num_tokens = static_cast<int32_t>(result->tokens.size()) - gain.token_begin;
    live.next_position = sample.position + gain.num_tokens;
  }
  return absl::OkStatus();
}

// A draft: tokens are drawn, and forced, as without it, as long as the next row has the last one.
// Now and then rows are left over at the end, or all of them, as by an executor whose masks are not
// ready.
absl::Status FakeExecutor::DrawDraft(const StepPlan& plan, const engine::SampleRow& sample,
                                     Live* live, engine::StepResult* result) {
  const auto slice =
      std::find_if(plan.sequences.begin(), plan.sequences.end(),
                   [&sample](const SequenceSlice& s) { return s.token_begin == sample.row; });
  if (slice == plan.sequences.end() || slice->id != sample.id ||
      slice->kind != engine::SliceKind::kDraft || slice->num_tokens != sample.num_rows ||
      sample.num_rows > 1 + limits_.max_draft_tokens) {
    return Broken(sample.id, "verifies rows that are not those of its draft");
  }
  if (plan.positions[sample.row] + 1 != sample.position || sample.position < live->next_position) {
    return Broken(sample.id, "verifies a draft that does not follow its tokens");
  }
  if (plan.step % 8 == 0) {  // the draw is left out
    result->gains.push_back({.id = sample.id});
    return absl::OkStatus();
  }
  const uint64_t first_history = row_history_[sample.row];
  const int32_t num_rows = first_history % 16 == 0 ? 1 : sample.num_rows;
  const auto begin = static_cast<int32_t>(result->tokens.size());
  int32_t row = 0;  // that is drawn from
  int32_t count = 0;
  bool matches = true;
  const auto add = [&](const engine::SampledToken& token) {
    result->tokens.push_back(token);
    ++count;
    matches = matches && count < num_rows && tokens_[sample.row + count] == token.token;
    if (matches) row = count;
  };
  do {
    const uint64_t history = row_history_[sample.row + row];
    const TokenId token =
        TokenFor(history, live->sampling.seed, sample.position + count, limits_.vocab);
    add(Report(history, token, live->sampling.num_logprobs));
    if (!IsConstrained(live->sampling)) continue;
    for (TokenId forced : Forced(token, limits_.vocab)) add({.token = forced});
  } while (matches);
  result->gains.push_back(
      {.id = sample.id, .token_begin = begin, .num_tokens = count, .rows_kept = row + 1});
  live->next_position = sample.position + count;
  return absl::OkStatus();
}

absl::Status FakeExecutor::Score(const StepPlan& plan, engine::StepResult* result) const {
  for (const engine::ScoreRow& score : plan.scores) {
    if (!live_.contains(score.id)) return Broken(score.id, "scored but was not begun");
    result->scores.push_back(Report(row_history_[score.row], score.target, score.num_top));
  }
  return absl::OkStatus();
}

std::vector<TokenId> FakeExecutor::Answer(const std::vector<TokenId>& prompt, uint64_t seed,
                                          int32_t count, int32_t vocab, bool constrained,
                                          uint64_t adapter) {
  uint64_t history = kEmptyHistory ^ adapter;
  for (TokenId token : prompt) history = Extend(history, token);
  std::vector<TokenId> answer;
  const auto add = [&](TokenId token) {
    if (answer.size() == static_cast<size_t>(count)) return;
    answer.push_back(token);
    history = Extend(history, token);
  };
  while (answer.size() < static_cast<size_t>(count)) {
    add(TokenFor(history, seed, static_cast<int64_t>(prompt.size() + answer.size()), vocab));
    if (!constrained) continue;
    for (TokenId token : Forced(answer.back(), vocab)) add(token);
  }
  return answer;
}

std::vector<TokenId> FakeExecutor::AnswerParts(const std::vector<TokenId>& prompt,
                                               const scheduler::ContextParts& parts, uint64_t seed,
                                               int32_t count, int32_t vocab) {
  std::vector<TokenId> tokens = prompt;
  std::vector<uint64_t> own;
  std::vector<size_t> part_of;
  std::vector<engine::Position> positions;
  const auto length = static_cast<int32_t>(prompt.size());
  const size_t last = parts.empty() ? 0 : parts.size() - 1;
  for (int32_t i = 0; i < length + count; ++i) {
    size_t part = 0;
    while (part < last && parts[part + 1].begin <= i) ++part;
    const bool sees_all = parts.empty() || parts[part].hidden.empty();
    uint64_t history = kEmptyHistory;
    for (int32_t j = 0; j < i; ++j) {
      const auto from = static_cast<int32_t>(part_of[j]);
      bool sees = true;
      for (size_t r = 0; !sees_all && r < parts[part].hidden.size(); ++r) {
        const scheduler::PartRange& range = parts[part].hidden[r];
        sees = sees && (from < range.begin || from >= range.end);
      }
      if (sees) history = See(history, tokens[j], positions[j], own[j]);
    }
    const engine::Position position =
        parts.empty() ? i : parts[part].position + i - parts[part].begin;
    if (i >= length) tokens.push_back(TokenFor(history, seed, position, vocab));
    own.push_back(Extend(history, tokens[i]));
    part_of.push_back(part);
    positions.push_back(position);
  }
  return {tokens.begin() + length, tokens.end()};
}

std::vector<std::vector<TokenId>> FakeExecutor::AnswerWorkers(
    const std::vector<TokenId>& prompt, const std::vector<std::vector<TokenId>>& given,
    uint64_t seed, const std::vector<int32_t>& max_tokens, int32_t vocab) {
  uint64_t of_prompt = kEmptyHistory;
  for (const TokenId token : prompt) of_prompt = Extend(of_prompt, token);
  const auto n = static_cast<int32_t>(prompt.size());
  std::vector<std::vector<TokenId>> blocks = given;
  std::vector<std::vector<uint64_t>> own(given.size());  // histories of the rows that have run
  const auto length_of = [&](size_t w) { return blocks[w].size() - given[w].size(); };
  bool runs = true;
  for (size_t t = 0; runs; ++t) {
    runs = false;
    const std::vector<std::vector<uint64_t>> before = own;
    for (size_t w = 0; w < given.size(); ++w) {
      // The last token of an answer does not run.
      const bool is_over = static_cast<int32_t>(length_of(w)) == max_tokens[w];
      if (t + (is_over ? 1 : 0) >= blocks[w].size()) continue;
      runs = true;
      uint64_t history = of_prompt;
      int32_t turn = 0;
      for (size_t o = 0; o < given.size(); ++o) {
        if (o != w) turn += static_cast<int32_t>(before[o].size());
      }
      const auto see = [&](size_t o) {
        for (size_t u = 0; u < before[o].size(); ++u) {
          const engine::Position position = n + static_cast<int32_t>(u) - turn;
          history = See(history, blocks[o][u], position, before[o][u]);
        }
      };
      for (size_t o = 0; o < given.size(); ++o) {
        if (o == w) continue;
        see(o);
        turn -= static_cast<int32_t>(before[o].size());
      }
      see(w);
      own[w].push_back(Extend(history, blocks[w][t]));
      if (t + 1 < blocks[w].size()) continue;
      const int64_t position = n + static_cast<int64_t>(t) + 1;
      blocks[w].push_back(TokenFor(own[w].back(), seed + w, position, vocab));
    }
  }
  for (size_t w = 0; w < given.size(); ++w) {
    blocks[w].erase(blocks[w].begin(), blocks[w].begin() + static_cast<int64_t>(given[w].size()));
  }
  return blocks;
}

float FakeExecutor::Logprob(const std::vector<TokenId>& history, TokenId token) {
  uint64_t hash = kEmptyHistory;
  for (TokenId t : history) hash = Extend(hash, t);
  return LogprobFor(hash, token);
}

}  // namespace heddle::test
