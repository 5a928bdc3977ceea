#include "server/cli/draft_bench.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/draft/combined_drafter.h"
#include "engine/whole_context.h"
#include "scheduler/catch_up.h"

namespace heddle::server {
namespace {

using engine::PageId;
using engine::SequenceId;
using engine::TokenId;

double ElapsedUs(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since)
      .count();
}

// Steps of a way before the next one's turn.
constexpr int kTurnSteps = 8;

// Replays share an executor.
struct SharedExecutor {
  engine::Executor& executor;
  int64_t steps = 0;          // that it has executed
  int32_t num_sequences = 0;  // of all replays
};

class Replay {
 public:
  // Its sequences are number `first` and the following of all replays'.
  Replay(SharedExecutor* shared, int32_t first, const DraftBenchShape& shape,
         const SpeculationOptions& speculation)
      : shared_(*shared),
        executor_(shared->executor),
        first_(first),
        shape_(shape),
        options_(speculation),
        budget_({.max_step_rows = shared->executor.limits().max_batch_tokens}),
        sequences_(static_cast<size_t>(shape.batch)) {
    if (speculation.on) drafter_ = engine::MakeDrafter(speculation.drafters);
    Begin();
  }

  bool is_done() const { return open_ == 0; }

  // Takes a few steps, and the last ones at most.
  absl::Status TakeTurn() {
    const auto began = std::chrono::steady_clock::now();
    for (int step = 0; step < kTurnSteps && open_ > 0; ++step) HEDDLE_RETURN_IF_ERROR(Step());
    timing_.seconds += ElapsedUs(began) / 1e6;
    return absl::OkStatus();
  }

  // REQUIRES: is_done().
  absl::StatusOr<DraftTiming> End() {
    timing_.drafts = budget_.stats();
    for (size_t i = 0; i < sequences_.size(); ++i) plan_.ended.push_back(IdOf(i));
    HEDDLE_RETURN_IF_ERROR(Execute());
    return timing_;
  }

 private:
  struct Sequence {
    int32_t known = 0;  // tokens of the text that are the prompt or answered
    int32_t shown = 0;  // of these, to the drafters
    engine::DraftTree tree;
    int32_t rows = 0;  // of the tree, in this step
  };

  SequenceId IdOf(size_t i) const {
    return static_cast<SequenceId>(static_cast<size_t>(first_) + i + 1);
  }
  int32_t LeftOf(const Sequence& sequence) const {
    return static_cast<int32_t>(shape_.text.size()) - sequence.known;
  }

  void Begin() {
    engine::SamplingParams greedy;
    greedy.temperature = 0.0f;
    const auto prompt = shape_.text.first(static_cast<size_t>(shape_.prompt_tokens));
    for (size_t i = 0; i < sequences_.size(); ++i) {
      sequences_[i].known = sequences_[i].shown = shape_.prompt_tokens;
      plan_.begun.push_back({.id = IdOf(i), .sampling = greedy, .prompt = {}});
      if (drafter_ != nullptr) drafter_->Begin(IdOf(i), {}, prompt, {});
    }
    open_ = shape_.batch;
  }

  void Draft() {
    offers_.clear();
    if (drafter_ == nullptr || !budget_.wants_drafts()) return;
    const size_t first = catch_up_.Begin(sequences_.size());
    for (size_t turn = 0; turn < sequences_.size(); ++turn) {
      const size_t i = (first + turn) % sequences_.size();
      Sequence& sequence = sequences_[i];
      // A draft brings one token more than it has.
      const int32_t most = std::min(options_.max_tokens, LeftOf(sequence) - 1);
      if (most < 1 || !Show(i)) continue;
      drafter_->Propose(IdOf(i), most, &sequence.tree);
      offers_.push_back({.id = IdOf(i), .survival = sequence.tree.survival});
    }
    budget_.Choose({.decodes = open_}, offers_);
    for (const scheduler::DraftOffer& offer : offers_) {
      const auto number = static_cast<int32_t>(offer.id) - 1;
      sequences_[static_cast<size_t>(number - first_)].rows = offer.rows;
    }
  }

  // As on a server, drafters are shown an answer's tokens when they are asked. Returns whether they
  // have seen all.
  bool Show(size_t i) {
    Sequence& sequence = sequences_[i];
    const auto begin = static_cast<size_t>(sequence.shown);
    const auto unseen = static_cast<size_t>(sequence.known - sequence.shown);
    const size_t count = catch_up_.Take(i, unseen);
    if (count > 0) drafter_->Append(IdOf(i), shape_.text.subspan(begin, count));
    sequence.shown += static_cast<int32_t>(count);
    return count == unseen;
  }

  // The last known token of sequence `i`, and its draft's.
  void AddRows(size_t i) {
    const Sequence& sequence = sequences_[i];
    const int32_t page_tokens = executor_.limits().page_tokens;
    const int32_t begin = sequence.known - 1;
    const int32_t end = sequence.known + sequence.rows;
    const auto page_of = [&](int32_t page) {
      return static_cast<PageId>(page * shared_.num_sequences + first_ + static_cast<int32_t>(i));
    };
    engine::SequenceSlice slice{
        .id = IdOf(i),
        .kind = sequence.rows > 0 ? engine::SliceKind::kDraft : engine::SliceKind::kDecode,
        .token_begin = static_cast<int32_t>(plan_.token_ids.size()),
        .num_tokens = end - begin,
        .span_begin = static_cast<int32_t>(plan_.spans.size()),
        .num_spans = (end + page_tokens - 1) / page_tokens,
        .context_tokens = end};
    for (int32_t position = begin; position < end; ++position) {
      plan_.token_ids.push_back(
          position == begin ? shape_.text[static_cast<size_t>(begin)]
                            : sequence.tree.tokens[static_cast<size_t>(position - begin) - 1]);
      plan_.positions.push_back(position);
      plan_.kv_slots.push_back({page_of(position / page_tokens), position % page_tokens});
    }
    for (int32_t page = 0; page < slice.num_spans; ++page) {
      plan_.spans.push_back({page_of(page), std::min(page_tokens, end - page * page_tokens)});
    }
    plan_.samples.push_back({.id = slice.id,
                             .row = slice.token_begin,
                             .position = sequence.known,
                             .num_rows = slice.num_tokens});
    plan_.sequences.push_back(slice);
  }

  // The text decides what is accepted. Returns how many tokens of the draft are.
  int32_t Accept(size_t i) {
    Sequence& sequence = sequences_[i];
    const auto rest = shape_.text.subspan(static_cast<size_t>(sequence.known));
    int32_t accepted = 0;
    while (accepted < sequence.rows && sequence.tree.tokens[static_cast<size_t>(accepted)] ==
                                           rest[static_cast<size_t>(accepted)]) {
      ++accepted;
    }
    if (sequence.rows > 0) budget_.CountDraft(IdOf(i), sequence.rows, accepted);
    sequence.known += accepted + 1;
    sequence.rows = 0;
    if (LeftOf(sequence) == 0) --open_;
    return accepted;
  }

  absl::Status Step() {
    const auto began = std::chrono::steady_clock::now();
    Draft();
    scheduler::DraftedStep step{.rows = {.decodes = open_}, .asked_us = ElapsedUs(began)};
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (LeftOf(sequences_[i]) == 0) continue;
      step.drafted += sequences_[i].rows;
      AddRows(i);
    }
    HEDDLE_RETURN_IF_ERROR(Execute());
    ++timing_.steps;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (LeftOf(sequences_[i]) > 0) step.accepted += Accept(i);
    }
    step.us = ElapsedUs(began);
    budget_.CountStep(step);
    return absl::OkStatus();
  }

  absl::Status Execute() {
    const engine::ExecutorLimits& limits = executor_.limits();
    const auto groups = static_cast<int32_t>(limits.windows.size());
    plan_.step = shared_.steps++;
    engine::AddWholeGroups(groups, limits.num_pages / groups, &plan_);
    HEDDLE_RETURN_IF_ERROR(executor_.Submit(plan_, {}));
    HEDDLE_RETURN_IF_ERROR(executor_.Wait(&result_));
    plan_.Clear();
    return absl::OkStatus();
  }

  SharedExecutor& shared_;
  engine::Executor& executor_;
  const int32_t first_;
  const DraftBenchShape shape_;
  const SpeculationOptions options_;
  std::unique_ptr<engine::Drafter> drafter_;
  scheduler::DraftBudget budget_;
  scheduler::CatchUp catch_up_;
  std::vector<Sequence> sequences_;
  std::vector<scheduler::DraftOffer> offers_;
  int32_t open_ = 0;  // sequences that have not answered all
  engine::StepPlan plan_;
  engine::StepResult result_;
  DraftTiming timing_;
};

}  // namespace

std::vector<TokenId> WordsAsTokens(std::string_view text, int32_t vocab) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  std::vector<TokenId> tokens;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;  // as byte-level tokenizers do, a word takes the space before it along
    if (is_word(text[begin]) || (text[begin] == ' ' && end < text.size() && is_word(text[end]))) {
      while (end < text.size() && is_word(text[end])) ++end;
    } else if (text[begin] == ' ') {
      while (end < text.size() && text[end] == ' ') ++end;
    }
    const size_t hash = std::hash<std::string_view>()(text.substr(begin, end - begin));
    tokens.push_back(static_cast<TokenId>(hash % static_cast<size_t>(vocab)));
    begin = end;
  }
  return tokens;
}

absl::StatusOr<std::vector<DraftTiming>> ReplayText(engine::Executor& executor,
                                                    const DraftBenchShape& shape,
                                                    std::span<const SpeculationOptions> ways) {
  const engine::ExecutorLimits& limits = executor.limits();
  const auto tokens = static_cast<int64_t>(shape.text.size());
  if (shape.prompt_tokens < 1 || shape.prompt_tokens >= tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", tokens, " tokens: too few for a prompt and --output-tokens ",
                     tokens - shape.prompt_tokens));
  }
  const int64_t num_sequences = static_cast<int64_t>(shape.batch) * std::ssize(ways);
  const int64_t pages = (tokens + limits.page_tokens - 1) / limits.page_tokens * num_sequences;
  const int64_t pages_of_group = limits.num_pages / static_cast<int64_t>(limits.windows.size());
  if (tokens > limits.max_context || pages > pages_of_group) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text's ", tokens, " tokens, ", num_sequences, " times, do not fit into ",
                     "the context of ", limits.max_context, " and the KV cache of ",
                     pages_of_group * limits.page_tokens, " tokens"));
  }
  SharedExecutor shared{.executor = executor, .num_sequences = static_cast<int32_t>(num_sequences)};
  std::vector<std::unique_ptr<Replay>> replays;
  for (const SpeculationOptions& way : ways) {
    SpeculationOptions bounded = way;
    bounded.max_tokens = std::min(bounded.max_tokens, limits.max_draft_tokens);
    const int32_t first = static_cast<int32_t>(replays.size()) * shape.batch;
    replays.push_back(std::make_unique<Replay>(&shared, first, shape, bounded));
  }
  const auto is_done = [](const auto& replay) { return replay->is_done(); };
  while (!std::all_of(replays.begin(), replays.end(), is_done)) {
    for (const auto& replay : replays) HEDDLE_RETURN_IF_ERROR(replay->TakeTurn());
  }
  std::vector<DraftTiming> timings;
  for (const auto& replay : replays) {
    HEDDLE_ASSIGN_OR_RETURN(const DraftTiming timing, replay->End());
    timings.push_back(timing);
  }
  return timings;
}

}  // namespace heddle::server
