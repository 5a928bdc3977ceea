#include "tests/gpu/stepped_answers.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "scheduler/scheduler.h"
#include "tests/kernels/testing.h"
#include "tests/support/adapter_images.h"

namespace heddle::gpu {
namespace {

using engine::TokenId;
using scheduler::GenerationRequest;
using scheduler::RequestId;
using scheduler::Scheduler;
using scheduler::SchedulerOptions;

constexpr int32_t kStepTokens = 96, kStepSeqs = 12;
constexpr int32_t kSpacing = 2;      // steps between two requests, unless pages are few
constexpr int32_t kPrefix = 48;      // tokens that every third prompt begins with
constexpr int32_t kDraftTokens = 5;  // of a draft
// With few pages an urgent request comes at this step: the others, which came at once, then hold
// most pages, and it needs nearly all of them.
constexpr int64_t kUrgentStep = 3;
constexpr int32_t kUrgent = -1;  // priority

// All branches have the prompt in common.
int64_t TokensOf(const GenerationRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) +
         int64_t{request.num_branches} * request.max_tokens;
}

SchedulerOptions OptionsFor(const engine::ExecutorLimits& limits,
                            const std::vector<GenerationRequest>& requests, bool few_pages) {
  SchedulerOptions options = {.num_pages = limits.num_pages,
                              .num_host_pages = limits.num_host_pages,
                              .page_tokens = limits.page_tokens,
                              .max_context = limits.max_context,
                              .windows = limits.windows,
                              .window_grain = limits.window_grain,
                              .state_groups = limits.state_groups,
                              .state_is_snapshot = limits.state_is_snapshot,
                              .max_step_tokens = std::min(kStepTokens, limits.max_batch_tokens),
                              .max_step_seqs = std::min(kStepSeqs, limits.max_batch_seqs),
                              .max_draft_tokens = limits.max_draft_tokens,
                              .adapter_slots = limits.adapter_slots};
  if (!few_pages) return options;
  int64_t longest = 0, adapter_pages = 0;
  for (const GenerationRequest& request : requests) {
    longest = std::max(longest, TokensOf(request));
    adapter_pages = std::max<int64_t>(adapter_pages, request.adapter.num_pages);
  }
  const int64_t pages =
      options.page_rule().MostPages(static_cast<int32_t>(longest), limits.windows) + adapter_pages;
  options.num_pages = static_cast<int32_t>(std::min<int64_t>(pages + 1, limits.num_pages));
  options.num_host_pages = std::min(16, limits.num_host_pages);
  options.policy = scheduler::PolicyKind::kPriority;
  return options;
}

// The steps of one run.
class Runner {
 public:
  Runner(engine::LocalExecutor& executor, const std::vector<GenerationRequest>& requests,
         const SteppedWay& way)
      : executor_(executor),
        requests_(requests),
        way_(way),
        scheduler_(OptionsFor(executor.limits(), requests, way.few_pages)) {}

  absl::StatusOr<SteppedRun> Run() {
    for (const GenerationRequest& request : requests_) {
      const bool is_greedy = request.sampling.temperature == 0;
      for (int32_t b = 0; b < request.num_branches; ++b) {
        run_.answers[{static_cast<uint64_t>(request.id), b}].is_greedy = is_greedy;
      }
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      last_arrival_ = std::max(last_arrival_, ArrivalOf(i));
    }
    while (true) {
      HEDDLE_ASSIGN_OR_RETURN(const bool goes_on, Step());
      if (!goes_on) break;
    }
    const scheduler::SchedulerStats& stats = scheduler_.stats();
    run_.preemptions = stats.preemptions;
    run_.swapped = stats.pages_swapped_in;
    run_.cached = stats.cached_tokens;
    run_.accepted = stats.accepted_tokens;
    return std::move(run_);
  }

 private:
  // A step takes so long by the scheduler's clock that swapping a page always pays.
  static constexpr int64_t kStepUs = 1'000'000;

  absl::StatusOr<bool> Step() {
    const int64_t now = ++step_ * kStepUs;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (ArrivalOf(i) == step_) scheduler_.Add(requests_[i], now);
    }
    engine::StepPlan& plan = plans_[step_ % 2];
    engine::StepPlan& next = plans_[(step_ + 1) % 2];
    if (!has_next_) {
      Draft();
      scheduler_.Plan(now, &plan);
      if (plan.empty()) return step_ < last_arrival_;
      HEDDLE_RETURN_IF_ERROR(executor_.Submit(plan, scheduler_.locals()));
    }
    has_next_ = way_.ahead && scheduler_.PlanAhead(now, &next);
    if (has_next_) HEDDLE_RETURN_IF_ERROR(executor_.Submit(next, scheduler_.locals()));
    run_.steps_ahead += has_next_ ? 1 : 0;
    ++run_.steps;
    HEDDLE_RETURN_IF_ERROR(executor_.Wait(&result_));
    result_.timing.swap_ns = 0;  // steps take no time here: swaps must not seem to
    events_.clear();
    scheduler_.Commit(result_, now, &events_);
    Book();
    HEDDLE_RETURN_IF_ERROR(scheduler_.CheckIntegrity());
    return true;
  }

  // The step at which a request comes.
  int64_t ArrivalOf(size_t index) const {
    if (way_.few_pages) return requests_[index].priority == kUrgent ? kUrgentStep : 1;
    return 1 + kSpacing * static_cast<int64_t>(index);
  }

  void Book() {
    for (const scheduler::SequenceEvent& event : events_) {
      Answer& answer = run_.answers[{static_cast<uint64_t>(event.request), event.branch}];
      for (int32_t i = 0; i < event.num_tokens; ++i) {
        const auto& token = result_.tokens[static_cast<size_t>(event.token_begin + i)];
        answer.tokens.push_back(token.token);
        answer.logprobs.push_back(token.logprob);
      }
    }
  }

  void Draft() {
    if (way_.drafts == nullptr) return;
    scheduler_.ListDraftable(&candidates_);
    for (const scheduler::DraftCandidate& candidate : candidates_) {
      const auto known =
          way_.drafts->find({static_cast<uint64_t>(candidate.request->id), candidate.branch});
      if (known == way_.drafts->end()) continue;
      const std::vector<TokenId>& tokens = known->second.tokens;
      std::vector<TokenId> draft;
      for (size_t at = candidate.generated.size(); at < tokens.size(); ++at) {
        if (draft.size() == kDraftTokens) break;
        draft.push_back(at % 4 == 3 ? (tokens[at] + 1) % executor_.limits().vocab : tokens[at]);
      }
      if (!draft.empty()) scheduler_.Offer(candidate.id, draft);
    }
  }

  engine::LocalExecutor& executor_;
  const std::vector<GenerationRequest>& requests_;
  const SteppedWay way_;
  Scheduler scheduler_;
  std::vector<scheduler::DraftCandidate> candidates_;
  std::vector<scheduler::SequenceEvent> events_;
  engine::StepPlan plans_[2];
  engine::StepResult result_;
  SteppedRun run_;
  int64_t last_arrival_ = 0;
  int64_t step_ = 0;
  bool has_next_ = false;
};

std::string Place(const Answers::key_type& key, size_t token) {
  return absl::StrCat("request ", key.first, ", branch ", key.second, ", token ", token);
}

}  // namespace

std::shared_ptr<engine::AdapterImage> SteppedAdapter(const engine::LocalExecutor& executor) {
  constexpr int32_t kRank = 4;
  const engine::ModelSpec& spec = executor.spec();
  const int32_t inter = spec.layers.front().mlp.inter;
  if (executor.limits().adapter_slots == 0 || inter == 0) return nullptr;
  kernels::test::Random random(3);
  test::PlainFactors factors{.site = engine::AdapterSite::kDown, .rank = kRank};
  const auto fill = [&](std::vector<float>* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values->push_back(random.Uniform(-0.1f, 0.1f));
  };
  fill(&factors.a, int64_t{kRank} * inter);
  fill(&factors.b, int64_t{kRank} * spec.hidden);
  auto image = test::MakeAdapterImage({&factors, 1}, executor.limits().adapter_dtype,
                                      executor.limits().page_bytes, /*block_rows=*/1, /*seed=*/1);
  image->id = engine::AdapterId{1};
  return image;
}

std::vector<GenerationRequest> SteppedRequests(const engine::ExecutorLimits& limits,
                                               const std::shared_ptr<engine::AdapterImage>& adapter,
                                               int32_t most_tokens) {
  constexpr int32_t kLengths[] = {6, 61, 17, 33, 90, 1, 130, 64, 25, 9, 200, 5};
  const int32_t room = limits.max_context - most_tokens - kPrefix;
  std::vector<GenerationRequest> requests;
  for (const int32_t length : kLengths) {
    const auto index = static_cast<int32_t>(requests.size());
    GenerationRequest& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    const int32_t shared = index % 3 == 1 ? kPrefix : 0;
    for (int32_t i = 0; i < shared + std::min(length, room); ++i) {
      const int32_t seed = i < shared ? 0 : 11 * (index + 1);
      request.prompt.push_back(3 + (i * 37 + seed) % std::min(500, limits.vocab - 3));
    }
    request.max_tokens = 2 + (5 * index + 3) % std::max(1, most_tokens - 1);
    request.sampling.temperature = index % 4 == 2 ? 0.8f : 0.0f;
    request.sampling.num_logprobs = 0;
    request.sampling.seed = static_cast<uint64_t>(index);
    if (index % 4 == 2) request.num_branches = 3;
    if (adapter == nullptr || index % 3 != 0) continue;
    request.adapter = {.id = adapter->id, .num_pages = adapter->num_pages, .image = adapter};
    request.cache_space = 1;
  }
  const auto longest =
      std::max_element(requests.begin(), requests.end(),
                       [](const auto& a, const auto& b) { return TokensOf(a) < TokensOf(b); });
  longest->priority = kUrgent;
  return requests;
}

absl::StatusOr<SteppedRun> RunSteps(engine::LocalExecutor& executor,
                                    const std::vector<GenerationRequest>& requests,
                                    const SteppedWay& way) {
  return Runner(executor, requests, way).Run();
}

Comparison CompareExactly(const Answers& found, const Answers& wanted) {
  Comparison all;
  for (const auto& [key, want] : wanted) {
    ++all.answers;
    const auto its = found.find(key);
    if (its != found.end() && its->second == want) {
      ++all.equal;
      continue;
    }
    if (!all.first.empty()) continue;
    size_t at = 0;
    const Answer got = its == found.end() ? Answer() : its->second;
    while (at < got.tokens.size() && at < want.tokens.size() && got.tokens[at] == want.tokens[at] &&
           got.logprobs[at] == want.logprobs[at]) {
      ++at;
    }
    all.first = Place(key, at);
  }
  return all;
}

Comparison CompareNearly(const Answers& found, const Answers& wanted) {
  Comparison all;
  for (const auto& [key, want] : wanted) {
    if (!want.is_greedy) continue;
    ++all.answers;
    const auto its = found.find(key);
    const Answer got = its == found.end() ? Answer() : its->second;
    all.equal += got.tokens == want.tokens ? 1 : 0;
    if (got.tokens.size() != want.tokens.size()) {
      all.distance = INFINITY;
      if (all.first.empty())
        all.first = Place(key, std::min(got.tokens.size(), want.tokens.size()));
      continue;
    }
    for (size_t i = 0; i < want.tokens.size(); ++i) {
      const double distance = std::fabs(double{got.logprobs[i]} - want.logprobs[i]);
      if (!(distance <= all.distance)) {
        all.distance = std::isfinite(distance) ? distance : INFINITY;
        all.first = Place(key, i);
      }
      if (got.tokens[i] != want.tokens[i]) break;
    }
  }
  return all;
}

}  // namespace heddle::gpu
