// A scheduler with a FakeExecutor under it, stepped by hand, and the output of each branch. The
// executor may be in another process, as far as plans can tell: SendPlans.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/parallel/plan_codec.h"
#include "scheduler/scheduler.h"
#include "tests/support/fake_executor.h"

namespace heddle::scheduler {

inline constexpr int32_t kVocab = 1000;

struct BranchOutcome {
  std::vector<TokenId> tokens;
  std::vector<engine::SampledToken> scores;
  int32_t cached_tokens = 0;
  int32_t num_events = 0;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
};

class Rig {
 public:
  // If max_in_flight is larger, `ahead` says before each result, as long as there is room, whether
  // one more step is planned already.
  explicit Rig(const SchedulerOptions& options, int32_t max_in_flight = 1)
      : scheduler(WithDepth(options, max_in_flight)),
        executor({.num_pages = options.num_pages,
                  .page_tokens = options.page_tokens,
                  .max_context = options.max_context,
                  .max_batch_tokens = options.max_step_tokens,
                  .max_batch_seqs = options.max_step_seqs,
                  .num_host_pages = options.num_host_pages,
                  .vocab = kVocab,
                  .windows = options.windows,
                  .window_grain = options.window_grain,
                  .state_groups = options.state_groups,
                  .state_is_snapshot = options.state_is_snapshot,
                  .reads_pieces = options.reads_pieces,
                  .turns_queries = options.turns_queries,
                  .max_draft_tokens = options.max_draft_tokens,
                  .adapter_slots = options.adapter_slots},
                 max_in_flight) {}

  RequestId Add(GenerationRequest request) {
    request.id = RequestId{++last_id_};
    scheduler.Add(request, now_us);
    return request.id;
  }

  // Runs one step; false if there was nothing to do. Fails the test on a broken plan.
  bool Step() {
    ++now_us;
    if (loses && loses()) Lose();
    if (planned_.empty()) {
      Draft();
      scheduler.Plan(now_us, &plan);
      if (on_plan) on_plan();
      if (plan.empty()) return false;
      Submit(plan);
    } else {
      plan = std::move(planned_.front());
      planned_.pop_front();
    }
    engine::StepPlan next;
    while (ahead && ahead()) {
      Draft();
      if (!scheduler.PlanAhead(now_us, &next)) break;
      if (on_plan) on_plan();
      Submit(next);
      planned_.push_back(next);
    }
    if (absl::Status status = executor.Wait(&result); !status.ok()) FAIL(status.ToString());
    if (!sent_.empty()) sent_.pop_front();
    if (between) between();
    events.clear();
    scheduler.Commit(result, now_us, &events);
    Book();
    return true;
  }

  // From now on plans reach the executor as messages. To be called before the first one, or when
  // both ends begin anew.
  void SendPlans() {
    encoder_.emplace(executor.limits());
    decoder_.emplace(executor.limits());
  }

  // The executor loses its pages and the steps in flight, and comes back empty.
  void Lose() {
    executor.set_recover([] { return absl::OkStatus(); });
    if (!executor.Abandon() || !executor.Recover().ok()) FAIL("the executor does not come back");
    planned_.clear();
    sent_.clear();
    if (encoder_) SendPlans();
    std::vector<StepNote> notes;
    scheduler.ForgetPages(now_us, &notes);
    if (scheduler.stats().pages_used != 0) FAIL("pages are in use, and nothing runs");
  }

  void RunAll() {
    while (Step()) {
    }
  }

  void Cancel(RequestId id) {
    events.clear();
    scheduler.Cancel(id, FinishReason::kCancelled, &events);
    Book();
  }
  void CancelBranch(RequestId id, int32_t branch) {
    events.clear();
    scheduler.CancelBranch(id, branch, &events);
    Book();
  }

  // Fails on an event after the last one, and on a range outside of the result.
  void Book() {
    for (const SequenceEvent& event : events) {
      BranchOutcome& out = outcome[{event.request, event.branch}];
      if (out.finished) FAIL("an event after the last one");
      ++out.num_events;
      for (int32_t i = 0; i < event.num_tokens; ++i) {
        out.tokens.push_back(result.tokens.at(event.token_begin + i).token);
      }
      for (int32_t i = 0; i < event.num_scores; ++i) {
        out.scores.push_back(result.scores.at(event.score_begin + i));
      }
      out.cached_tokens += event.cached_tokens;
      out.finished = event.finished;
      out.reason = event.reason;
    }
  }

  BranchOutcome& Of(RequestId id, int32_t branch = 0) { return outcome[{id, branch}]; }

  Scheduler scheduler;
  test::FakeExecutor executor;
  engine::StepPlan plan;
  engine::StepResult result;
  std::vector<SequenceEvent> events;
  std::function<bool()> ahead;
  // Proposes drafts for a candidate, before each plan.
  std::function<std::vector<TokenId>(const DraftCandidate&)> draft;
  std::function<void()> on_plan;  // behind each plan that is made
  std::function<bool()> loses;    // before each step: whether the executor loses all that it has
  std::function<void()> between;  // after the executor, before Commit
  std::map<std::pair<RequestId, int32_t>, BranchOutcome> outcome;
  int64_t now_us = 0;

 private:
  static SchedulerOptions WithDepth(SchedulerOptions options, int32_t max_in_flight) {
    options.max_in_flight = max_in_flight;
    return options;
  }

  // The plan as the executor gets it; valid until its result is there.
  const engine::StepPlan& Sent(const engine::StepPlan& submitted) {
    if (!encoder_) return submitted;
    message_.clear();
    encoder_->Encode(submitted, &message_);
    const absl::Status status = decoder_->Decode(message_, &sent_.emplace_back());
    if (!status.ok()) FAIL(status.ToString());
    return sent_.back();
  }

  void Submit(const engine::StepPlan& submitted) {
    const absl::Status status = executor.Submit(Sent(submitted), scheduler.locals());
    if (!status.ok()) FAIL(status.ToString());
  }

  void Draft() {
    if (!draft) return;
    std::vector<DraftCandidate> candidates;
    scheduler.ListDraftable(&candidates);
    for (const DraftCandidate& candidate : candidates) {
      scheduler.Offer(candidate.id, draft(candidate));
    }
  }

  uint64_t last_id_ = 0;
  std::deque<engine::StepPlan> planned_;  // submitted behind `plan`
  // Plans as messages, if they are sent.
  std::optional<engine::PlanEncoder> encoder_;
  std::optional<engine::PlanDecoder> decoder_;
  std::string message_;
  std::deque<engine::StepPlan> sent_;  // decoded, and not done yet
};

// `num_prompt` tokens that depend on `salt`.
inline GenerationRequest MakeRequest(int32_t num_prompt, int32_t max_tokens, int32_t salt = 0) {
  GenerationRequest request;
  for (int32_t i = 0; i < num_prompt; ++i) request.prompt.push_back((i * 7 + salt * 31) % kVocab);
  request.max_tokens = max_tokens;
  request.sampling.seed = 100 + static_cast<uint64_t>(salt);
  return request;
}

inline std::vector<TokenId> Alone(const GenerationRequest& request, int32_t branch, int32_t count) {
  return test::FakeExecutor::Answer(
      request.prompt, request.sampling.seed + branch, count, kVocab,
      test::FakeExecutor::IsConstrained(request.sampling),
      test::FakeExecutor::AdapterKey(request.adapter.id, request.adapter.scale));
}

// Gives the request an adapter, and the name space that such requests have in the prefix cache.
inline void SetAdapter(GenerationRequest* request, uint64_t id, int32_t num_pages,
                       float scale = 1.0f) {
  request->adapter = {.id = engine::AdapterId{id}, .scale = scale, .num_pages = num_pages};
  request->cache_space = 1000 * id + static_cast<uint64_t>(scale * 10);
}

}  // namespace heddle::scheduler
