#include "scheduler/simulation/simulator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/in_flight.h"
#include "base/status.h"
#include "scheduler/simulation/simulated_fork.h"

namespace heddle::scheduler {
namespace {

class Simulation {
 public:
  Simulation(std::span<const SimulatedRequest> workload, const SimulationOptions& options)
      : workload_(workload),
        options_(options),
        scheduler_(options.scheduler),
        budget_({.max_step_rows = options.scheduler.max_step_tokens}),
        flights_(options.later_stages.empty() ? 1 : options.scheduler.max_in_flight),
        free_us_(options.later_stages.size() + 1),
        link_free_us_(options.later_stages.size() + 1) {
    double survival = 1;
    for (int32_t i = 0; i < options.draft_tokens; ++i) {
      survivals_.push_back(static_cast<float>(survival *= options.draft_acceptance));
    }
    draft_.assign(survivals_.size(), 0);  // what is guessed does not matter
    result_.requests.resize(workload.size());
    order_.resize(workload.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    if (options.clients == 0) {
      std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
        return workload[a].arrival_us < workload[b].arrival_us;
      });
    }
    free_clients_ = options.clients;
    open_.resize(workload.size());
  }

  absl::StatusOr<SimulationResult> Run() {
    while (true) {
      TakeArrivals();
      if (flights_.empty()) {
        Draft();
        scheduler_.Plan(NowUs(), &flights_.next().plan);
        if (!flights_.next().plan.empty()) Submit();
      }
      while (!flights_.empty() && !flights_.full()) {
        Draft();
        if (!scheduler_.PlanAhead(NowUs(), &flights_.next().plan)) break;
        Submit();
      }
      if (!flights_.empty()) {
        RunStep();
        if (steps_without_token_ > MostStepsWithoutToken()) return Stuck();
        continue;
      }
      if (!scheduler_.idle()) return Stuck();
      if (next_ == order_.size()) break;
      // With clients and nothing running, the next request was taken above, so only future arrivals
      // are left.
      PassTo(static_cast<double>(workload_[order_[next_]].arrival_us), /*busy=*/false);
    }
    HEDDLE_RETURN_IF_ERROR(scheduler_.CheckIntegrity());
    result_.totals = scheduler_.stats();
    result_.drafts = budget_.stats();
    result_.end_us = now_us_;
    return std::move(result_);
  }

 private:
  // The part of a running request that is not booked yet.
  struct Open {
    int32_t branches = 0;  // that have not ended
    bool started = false;
    std::vector<double> last_token_us;  // [branches]; 0: none yet
    std::unique_ptr<SimulatedFork> fork;
  };
  // A request of the scheduler: all of one in the workload, or a part of it.
  struct Part {
    size_t index = 0;
    size_t first_branch = 0;  // of the workload's request
  };

  int64_t NowUs() const { return std::llround(now_us_); }

  // The most urgent sequence gets at least one row of every step, so a token comes at the latest
  // when it has computed the longest context; the few extra steps only end sequences.
  int64_t MostStepsWithoutToken() const {
    return 2 * (int64_t{Scheduler::MaxContext(options_.scheduler)} + 100);
  }

  absl::Status Stuck() const {
    const SchedulerStats stats = scheduler_.stats();
    return absl::InternalError(absl::StrCat(
        "the scheduler got stuck after ", result_.steps, " steps: ", stats.live_requests,
        " requests are not done, ", stats.running_sequences, " sequences run, ", stats.pages_used,
        " of ", options_.scheduler.num_pages, " pages are used, and the last ",
        steps_without_token_, " steps brought no token"));
  }

  void TakeArrivals() {
    while (next_ < order_.size()) {
      const size_t index = order_[next_];
      const auto arrival_us = static_cast<double>(workload_[index].arrival_us);
      if (options_.clients > 0 ? free_clients_ == 0 : arrival_us > now_us_) return;
      ++next_;
      Take(index, options_.clients > 0 ? now_us_ : arrival_us);
    }
  }

  void Take(size_t index, double arrival_us) {
    SimulatedResult& record = result_.requests[index];
    record.arrival_us = arrival_us;
    record.prompt_tokens = workload_[index].prompt_tokens;
    if (options_.clients == 0 && QueueIsFull(record.prompt_tokens)) {
      record.outcome = SimulatedOutcome::kQueueFull;
      return;
    }
    Open& open = open_[index];
    if (workload_[index].forks > 0) {
      open.fork = std::make_unique<SimulatedFork>(workload_[index], index);
      if (!AddStage(index, std::llround(arrival_us))) return;
    } else {
      GenerationRequest request = ToGenerationRequest(workload_[index], index);
      if (!Scheduler::Validate(request, options_.scheduler).ok()) {
        record.outcome = SimulatedOutcome::kNeverFits;
        return;
      }
      Add(std::move(request), {index, 0}, std::llround(arrival_us));
    }
    if (options_.clients > 0) --free_clients_;
  }

  void Add(GenerationRequest request, const Part& part, int64_t arrival_us) {
    Open& open = open_[part.index];
    open.branches += request.num_branches;
    open.last_token_us.resize(part.first_branch + static_cast<size_t>(request.num_branches));
    parts_.push_back(part);
    request.id = RequestId{parts_.size()};
    scheduler_.Add(std::move(request), arrival_us);
  }

  // Begins what follows in a request with branches. Returns false if that was all of it.
  bool AddStage(size_t index, int64_t now_us) {
    SimulatedResult& record = result_.requests[index];
    Open& open = open_[index];
    std::optional<ContextJoin> join;
    std::vector<GenerationRequest> stage = open.fork->NextStage(&join);
    for (const GenerationRequest& request : stage) {
      if (Scheduler::Validate(request, options_.scheduler).ok()) continue;
      record.outcome = SimulatedOutcome::kNeverFits;
      stage.clear();
      break;
    }
    if (stage.empty()) {
      EndFork(&open);
      return false;
    }
    if (join.has_value()) scheduler_.JoinContexts(*join);
    if (open.fork->is_joined()) record.joins = 1;
    std::fill(open.last_token_us.begin(), open.last_token_us.end(), 0.0);
    for (size_t i = 0; i < stage.size(); ++i) Add(std::move(stage[i]), {index, i}, now_us);
    return true;
  }

  void EndFork(Open* open) {
    if (open->fork == nullptr) return;
    for (const ContextId id : open->fork->Contexts()) scheduler_.DropContext(id);
    open->fork.reset();
  }

  bool QueueIsFull(int32_t prompt_tokens) const {
    const SchedulerStats stats = scheduler_.stats();
    if (stats.waiting_requests >= options_.max_queue) return true;
    return options_.max_queue_tokens > 0 && stats.waiting_requests > 0 &&
           stats.waiting_tokens + prompt_tokens > options_.max_queue_tokens;
  }

  // As server/loop/speculation does it.
  void Draft() {
    if (options_.draft_acceptance <= 0 || !budget_.wants_drafts()) return;
    scheduler_.ListDraftable(&candidates_);
    offers_.clear();
    for (const DraftCandidate& candidate : candidates_) {
      const size_t length = std::min(survivals_.size(), static_cast<size_t>(candidate.max_tokens));
      offers_.push_back({.id = candidate.id, .survival = std::span(survivals_).first(length)});
    }
    if (offers_.empty()) return;
    budget_.Choose({.decodes = scheduler_.NumDecoding(), .prompts = last_prompt_rows_}, offers_);
    for (const DraftOffer& offer : offers_) {
      if (offer.rows == 0) continue;
      scheduler_.Offer(offer.id, std::span(draft_).first(static_cast<size_t>(offer.rows)));
    }
  }

  // A step between its plan and its result.
  struct Flight {
    engine::StepPlan plan;
    double begin_us = 0;
    double back_us = 0;  // when the rows to draw from are at stage 0
  };

  // When rows that leave `stage` at `at_us` are at the next one. A link has one message at a time
  // on its way, but the next one leaves while the last one's latency passes.
  double PassLink(size_t stage, int64_t rows, double at_us) {
    if (rows == 0) return at_us;
    const double sent_us = options_.link.row_us * static_cast<double>(rows);
    link_free_us_[stage] = std::max(at_us, link_free_us_[stage]) + sent_us;
    return link_free_us_[stage] + options_.link.latency_us;
  }

  // Lets the next flight's plan pass through the stages, behind those before it.
  void Submit() {
    Flight& flight = flights_.next();
    flight.begin_us = now_us_;
    const auto rows = static_cast<int64_t>(flight.plan.token_ids.size());
    const size_t last = options_.later_stages.size();
    double at_us = now_us_;
    for (size_t stage = 0; stage <= last; ++stage) {
      if (stage > 0) at_us = PassLink(stage - 1, rows, at_us);
      const StepTimeModel& machine =
          stage == 0 ? options_.machine : options_.later_stages[stage - 1];
      at_us = std::max(at_us, free_us_[stage]) + StepUs(machine, flight.plan);
      free_us_[stage] = at_us;
    }
    flight.back_us = last == 0 ? at_us : PassLink(last, LogitRows(flight.plan), at_us);
    flights_.Push();
  }

  // Fills answer_ with a token for each sample and the guesses before it that are right.
  void Answer(const engine::StepPlan& plan) {
    answer_.Clear();
    answer_.step = plan.step;
    answer_.scores.resize(plan.scores.size());
    for (const engine::SampleRow& sample : plan.samples) {
      int32_t count = 1;
      while (count < sample.num_rows && Draw() < options_.draft_acceptance) ++count;
      answer_.gains.push_back(
          {sample.id, static_cast<int32_t>(answer_.tokens.size()), count, count});
      for (int32_t i = 0; i < count; ++i) {
        answer_.tokens.emplace_back().token = sample.position + i;
      }
      if (sample.num_rows == 1) continue;
      budget_.CountDraft(sample.id, sample.num_rows - 1, count - 1);
    }
  }

  double Draw() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  void CountDrafts(const engine::StepPlan& plan, double us) {
    DraftedStep step = RowsOf(plan);
    step.us = us;
    for (const engine::SequenceGain& gain : answer_.gains) step.accepted += gain.num_tokens - 1;
    last_prompt_rows_ = step.rows.prompts;
    budget_.CountStep(step);
  }

  // Ends the oldest step in flight. Stage 0 draws when it has run its layers of the steps behind
  // it, as the engine does.
  void RunStep() {
    const Flight& flight = flights_.oldest();
    const engine::StepPlan& plan = flight.plan;
    const double before_us = now_us_;
    PassTo(std::max(flight.back_us, free_us_.front()), /*busy=*/true);
    if (!plan.token_ids.empty()) ++result_.steps;
    Answer(plan);
    if (options_.draft_acceptance > 0) CountDrafts(plan, now_us_ - before_us);
    steps_without_token_ = plan.samples.empty() ? steps_without_token_ + 1 : 0;
    events_.clear();
    scheduler_.Commit(answer_, NowUs(), &events_);
    for (const SequenceEvent& event : events_) Book(event, flight.begin_us);
    events_.clear();
    scheduler_.Expire(NowUs(), &events_);
    for (const SequenceEvent& event : events_) Book(event, flight.begin_us);
    flights_.Pop();
    const int64_t prompt_rows = scheduler_.stats().prompt_tokens;
    result_.timeline.AddTokens(now_us_, static_cast<int64_t>(answer_.tokens.size()),
                               prompt_rows - prompt_rows_booked_);
    prompt_rows_booked_ = prompt_rows;
  }

  void Book(const SequenceEvent& event, double begin_us) {
    const Part part = parts_[static_cast<size_t>(event.request) - 1];
    const size_t index = part.index;
    SimulatedResult& record = result_.requests[index];
    Open& open = open_[index];
    if (event.queued_us >= 0 && !std::exchange(open.started, true)) {
      record.started_us = begin_us;
      record.cached_tokens = event.cached_tokens;
    }
    if (open.fork == nullptr) {
      record.cached_tokens = std::max(record.cached_tokens, event.cached_tokens);
    }
    record.output_tokens += event.num_tokens;
    if (event.num_tokens > 0) {
      const size_t branch = part.first_branch + static_cast<size_t>(event.branch);
      double& last_us = open.last_token_us[branch];
      // Tokens of one step come together; each counts as its share of the wait.
      for (int32_t i = 0; i < event.num_tokens && last_us > 0; ++i) {
        result_.inter_token.Add((now_us_ - last_us) / event.num_tokens);
      }
      if (record.first_token_us == 0) record.first_token_us = now_us_;
      last_us = now_us_;
    }
    if (event.finished) budget_.Forget(event.sequence);
    if (!event.finished || --open.branches > 0) return;
    const bool expired = event.reason == FinishReason::kError;
    if (!expired && open.fork != nullptr && AddStage(index, NowUs())) return;
    if (record.outcome == SimulatedOutcome::kUnknown) {
      record.outcome = expired ? SimulatedOutcome::kWaitedTooLong : SimulatedOutcome::kDone;
    }
    record.done_us = now_us_;
    EndFork(&open);
    open = {};
    if (options_.clients > 0) ++free_clients_;
  }

  void PassTo(double us, bool busy) {
    const SchedulerStats stats = scheduler_.stats();
    result_.timeline.Pass(now_us_, us,
                          {.pages_used = static_cast<double>(stats.pages_used),
                           .pages_cached = static_cast<double>(stats.pages_cached),
                           .running = static_cast<double>(stats.running_sequences),
                           .waiting = static_cast<double>(stats.waiting_requests)},
                          busy);
    if (busy) result_.busy_us += us - now_us_;
    now_us_ = us;
  }

  const std::span<const SimulatedRequest> workload_;
  const SimulationOptions& options_;
  Scheduler scheduler_;
  SimulationResult result_;
  std::vector<size_t> order_;  // workload indices in the order of arrival
  size_t next_ = 0;            // position in order_
  int32_t free_clients_ = 0;
  std::vector<Open> open_;   // parallel to the workload
  std::vector<Part> parts_;  // by id of the scheduler's request, from 1
  double now_us_ = 0;
  int64_t steps_without_token_ = 0;
  int64_t prompt_rows_booked_ = 0;

  DraftBudget budget_;
  std::vector<float> survivals_;  // [draft_tokens]
  std::vector<TokenId> draft_;    // [draft_tokens]
  std::mt19937_64 random_{1};
  int32_t last_prompt_rows_ = 0;

  // These are kept from step to step for their memory.
  std::vector<DraftCandidate> candidates_;
  std::vector<DraftOffer> offers_;
  base::InFlight<Flight> flights_;
  std::vector<double> free_us_;       // [stages] when each has run all that it was given
  std::vector<double> link_free_us_;  // [stages] when the link behind each has sent all
  engine::StepResult answer_;
  std::vector<SequenceEvent> events_;
};

}  // namespace

absl::StatusOr<SimulationResult> Simulate(std::span<const SimulatedRequest> workload,
                                          const SimulationOptions& options) {
  return Simulation(workload, options).Run();
}

}  // namespace heddle::scheduler
