// How Scheduler makes a plan. The order matters: decodes take their tokens first; admission looks
// at what the running sequences will need; only then are pages given out, in the order of service,
// so that preemption always hits sequences that have got nothing yet in this step.
#include <algorithm>

#include "base/check.h"
#include "scheduler/plan_writer.h"
#include "scheduler/scheduler.h"
#include "scheduler/token_budget.h"

namespace heddle::scheduler {

using engine::StepPlan;

namespace {

// See kAutomaticTarget.
constexpr double kAutomaticFloorUs = 20'000;
constexpr double kAutomaticFactor = 2;
// Rows of prompts beside streams while nothing is known of the machine: eight steps at most.
constexpr int32_t kFirstChunkTokens = 4 * kMinChunkTokens;
// Of the samples of a step planned ahead: what a step without a pause before it is worth.
constexpr float kMaxVoidShare = 0.1f;

}  // namespace

void Scheduler::Plan(int64_t now_us, StepPlan* plan) {
  HEDDLE_CHECK(num_flights_ == 0, "the last plan was not committed");
  is_ahead_ = needs_tokens_ = false;
  MakePlan(now_us, plan);
}

bool Scheduler::PlanAhead(int64_t now_us, StepPlan* plan) {
  if (num_flights_ != 1 || flights_[0].has_pools || needs_tokens_ || !MayExpect()) return false;
  Expect();
  // Whatever is missing would be somebody's that the step in flight draws a token of.
  PlanDecodes();
  if (reserved_pages_ > pool_.num_free()) return false;
  is_ahead_ = true;
  MakePlan(now_us, plan);
  return num_flights_ == 2;
}

// Whether the samples behind those of the step in flight are likely to be of use: a sequence whose
// grammar forces tokens behind its draw has none there, and is a step later than it could be.
bool Scheduler::MayExpect() const {
  const std::vector<Sequence*>& owners = flights_[0].sample_owners;
  float void_samples = 0;
  for (const Sequence* owner : owners) void_samples += owner->forcing;
  return void_samples <= kMaxVoidShare * static_cast<float>(owners.size());
}

// Of a sequence that the step in flight draws a token of: whether that is not its last by length.
bool Scheduler::GoesOn(const Sequence& owner) const {
  return owner.phase == Phase::kRunning && !IsFull(owner, 1);
}

// From here on they count as tokens of theirs that are to be run.
void Scheduler::Expect() {
  const std::vector<Sequence*>& owners = flights_[0].sample_owners;
  for (size_t i = 0; i < owners.size(); ++i) {
    owners[i]->num_expected = GoesOn(*owners[i]) && !owners[i]->sample_is_void ? 1 : 0;
    owners[i]->expected_sample = static_cast<int32_t>(i);
  }
}

void Scheduler::MakePlan(int64_t now_us, StepPlan* plan) {
  plan->Clear();
  plan->more_groups.resize(static_cast<size_t>(num_groups_) - 1);
  plan->step = ++step_;
  plan->ended.swap(ended_);
  now_us_ = now_us;
  notes_.clear();
  cache_.BeginStep();
  DropPassed();
  const int32_t decodes = PlanDecodes();
  const int32_t budget = std::max(0, PromptBudget(decodes));
  Admit(budget);
  PlanPrompts(budget);
  AssignPages();
  Flight* flight = &flights_[num_flights_];
  *flight = {.step = step_,
             .planned_us = now_us,
             .sample_owners = std::move(flight->sample_owners),
             .score_owners = std::move(flight->score_owners),
             .prompts_only = std::move(flight->prompts_only)};
  Write(plan, flight);
  flight->has_pools = !plan->pools.empty();
  num_flights_ += plan->empty() ? 0 : 1;
  if (plan->token_ids.empty()) return;
  last_cost_ = flight->cost;
  totals_.step_tokens += static_cast<int64_t>(plan->token_ids.size());
  totals_.budget_tokens += decodes + budget;
}

// Gives back pages that the window of their layers has passed. What is full of them is left to the
// prefix cache first, and of group 0 one hashed page is kept: the next one's hash and place in the
// cache hang on it.
void Scheduler::DropPassed() {
  if (!has_windows_) return;
  const int32_t least = std::max(options_.window_grain, options_.page_tokens);
  for (Sequence* sequence : running_) {
    for (int32_t group = 0; group < num_groups_; ++group) {
      if (options_.windows[group] == 0) continue;
      PageTable& table = sequence->tables[group];
      int32_t drop = sequence->num_computed() + 1 - options_.windows[group];
      if (drop < table.num_dropped() + least) continue;
      LeaveCached(sequence);
      if (group == 0 && sequence->num_hashed_pages > 0) {
        drop = std::min(drop, (sequence->num_hashed_pages - 1) * options_.page_tokens);
      }
      drop -= drop % options_.window_grain;
      table.DropFront(drop, &pool_);
    }
  }
}

// What is through with the step in flight has nothing left to run, and its place is free.
int32_t Scheduler::PlanDecodes() {
  prompts_.clear();
  slots_ = 0;
  reserved_pages_ = 0;
  int32_t decodes = 0;
  for (Sequence* sequence : running_) {
    const int32_t remaining = sequence->num_remaining();
    sequence->num_planned = 0;
    if (remaining == 0) continue;
    slots_ += NumSlots(*sequence);
    reserved_pages_ += PagesToRun(*sequence);
    if (remaining == 1) {
      sequence->num_planned = 1;
      ++decodes;
    } else {
      prompts_.push_back(sequence);
    }
  }
  return decodes;
}

// What a step takes when all streams decode, those included that are prompts or wait as yet, with
// as much context each as those of `decodes` have on the average.
double Scheduler::StreamsAloneUs(const StepCost& decodes) const {
  // Who does not fit beside the running ones will not join them.
  const int64_t waiting = blocked_ == SequenceId{} ? num_unstarted_ : 0;
  const auto live = static_cast<int64_t>(running_.size()) + waiting;
  StepCost all;
  all.rows = all.sequences = std::clamp<int64_t>(live, decodes.rows, options_.max_step_seqs);
  all.attended = decodes.attended * all.rows / decodes.rows;
  return cost_model_.PredictUs(all);
}

// Rows for prompts beside so many decodes.
int32_t Scheduler::PromptBudget(int32_t decodes) const {
  int32_t room = options_.max_step_tokens - decodes;
  const bool no_target = options_.target_step_us == 0;
  if (no_target || decodes == 0) return room;
  if (!cost_model_.is_ready()) return std::min(room, kFirstChunkTokens);
  StepCost base{.rows = decodes, .sequences = decodes};
  for (const Sequence* sequence : running_) {
    if (sequence->num_planned == 1) base.attended += sequence->num_tokens();
  }
  // Of the first prompt, which gets the most; a chunk's rows attend to a little more each.
  int64_t context = prompts_.empty() ? 0 : prompts_.front()->num_computed();
  double target_us = static_cast<double>(options_.target_step_us);
  if (options_.target_step_us == kAutomaticTarget) {
    target_us = std::max(kAutomaticFloorUs, kAutomaticFactor * StreamsAloneUs(base));
  }
  int32_t fitting = cost_model_.RowsWithin(target_us, base, context);
  return std::min(room, std::max(fitting, kMinChunkTokens));
}

void Scheduler::PlanPrompts(int32_t budget) {
  std::sort(prompts_.begin(), prompts_.end(), MoreUrgent());
  wants_.clear();
  for (const Sequence* prompt : prompts_) wants_.push_back(prompt->num_remaining());
  shares_.resize(wants_.size());
  ShareBudget(wants_, budget, shares_);
  for (size_t i = 0; i < prompts_.size(); ++i) prompts_[i]->num_planned = shares_[i];
}

void Scheduler::AssignPages() {
  int32_t reserved = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->num_planned > 0) reserved += FitPages(running_[i], i, reserved);
  }
}

// Pages that running_[index] gets, out of those that are free but for `reserved`. Preempts from
// the end of the list, unless it may be somebody whose last token is not known; what is still
// missing shortens the sequence's part of the step.
int32_t Scheduler::FitPages(Sequence* sequence, size_t index, int32_t reserved) {
  int32_t need = sequence->tables.PagesNeeded(sequence->num_planned, pool_);
  if (is_ahead_ && need > pool_.num_free() - reserved) needs_tokens_ = true;
  while (!is_ahead_ && need > pool_.num_free() - reserved && running_.size() > index + 1) {
    Preempt(running_.back());
    running_.pop_back();
    need = sequence->tables.PagesNeeded(sequence->num_planned, pool_);
  }
  int32_t available = pool_.num_free() - reserved;
  if (need > available && !is_ahead_ && sequence->tables.Capacity(available, pool_) == 0 &&
      sequence->tables.DropBorrowedTail(&pool_)) {
    need = sequence->tables.PagesNeeded(sequence->num_planned, pool_);
    available = pool_.num_free() - reserved;
  }
  if (need <= available) return need;
  sequence->num_planned =
      std::min(sequence->num_planned, sequence->tables.Capacity(available, pool_));
  return sequence->tables.PagesNeeded(sequence->num_planned, pool_);
}

void Scheduler::Preempt(Sequence* victim) {
  if (!victim->tables.empty()) ++totals_.preemptions;
  Note(*victim, StepNote::Kind::kPreempted, victim->num_computed());
  victim->num_recompute = std::max(victim->num_recompute, victim->num_computed());
  LeaveCached(victim);
  victim->tables.Drop(&pool_);
  victim->num_planned = 0;
  victim->phase = Phase::kWaiting;
  waiting_.Insert(victim, now_us_);
}

void Scheduler::InsertRunning(Sequence* sequence) {
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, MoreUrgent()),
                  sequence);
}

void Scheduler::Write(StepPlan* plan, Flight* flight) {
  flight->sample_owners.clear();
  flight->score_owners.clear();
  flight->prompts_only.clear();
  forks_.clear();
  // No page is freed from here on: one that a copy reads is not written by the same step's copies.
  for (Sequence* sequence : running_) {
    sequence->tables.Append(sequence->num_planned, &pool_, &plan->page_copies);
  }
  pool_.FlushReleases();
  plan->swaps_out = cache_.swaps_out();
  plan->swaps_in = cache_.swaps_in();
  flight->num_swaps = static_cast<int32_t>(plan->swaps_out.size() + plan->swaps_in.size());
  totals_.pages_swapped_out += static_cast<int64_t>(plan->swaps_out.size());
  totals_.pages_swapped_in += static_cast<int64_t>(plan->swaps_in.size());
  cache_.EndStep();
  for (Sequence* sequence : running_) {
    if (sequence->num_planned == 1) WriteSequence(sequence, plan, flight);
  }
  for (Sequence* sequence : running_) {
    if (sequence->num_planned > 1) WriteSequence(sequence, plan, flight);
  }
  for (Sequence* fork : forks_) InsertRunning(fork);
}

void Scheduler::WriteSequence(Sequence* sequence, StepPlan* plan, Flight* flight) {
  RequestState* request = sequence->request;
  if (!request->started) {
    request->started = true;
    request->queued_us = now_us_ - request->arrival_us;
    CountStarted(*request);
  }
  int32_t begin = sequence->num_computed() - sequence->num_planned;
  flight->cost.rows += sequence->num_planned;
  flight->cost.attended += int64_t{sequence->num_planned} * (begin + sequence->num_computed() + 1) /
                           2;  // the mean over its rows
  ++flight->cost.sequences;
  if (begin < request->num_prompt() || sequence->num_planned > 1) {
    totals_.prompt_tokens += sequence->num_planned;
    Note(*sequence, StepNote::Kind::kPrompt, sequence->num_planned);
  } else {
    Note(*sequence, StepNote::Kind::kDecode, 1);
  }
  totals_.recomputed_tokens +=
      std::clamp(sequence->num_recompute - begin, 0, sequence->num_planned);
  int32_t first_score = static_cast<int32_t>(plan->scores.size());
  int32_t row = WriteSlice(sequence, pool_.page_tokens(), plan);
  int32_t num_scores = static_cast<int32_t>(plan->scores.size()) - first_score;
  if (num_scores > 0) flight->score_owners.push_back({request, first_score, num_scores});
  // Pages of an answer are left when the sequence gives them up: it is the next turn that asks.
  if (!request->forked || sequence->num_planned > 1) LeaveCached(sequence);
  if (sequence->num_remaining() > 0) return;
  if (!request->forked) {
    WriteFork(sequence, row, plan, flight);
  } else {
    WriteSample(sequence, row, plan);
    flight->sample_owners.push_back(sequence);
  }
}

// The prompt is through with this step: all branches share its pages from now on and draw their
// first tokens from the same row.
void Scheduler::WriteFork(Sequence* carrier, int32_t row, StepPlan* plan, Flight* flight) {
  RequestState* request = carrier->request;
  request->forked = true;
  if (request->request.max_tokens == 0) {
    flight->prompts_only.push_back(request);
    return;
  }
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kFinished) continue;
    if (&branch != carrier) {
      branch.tables.ForkFrom(carrier->tables, &pool_);
      branch.num_hashed_pages = carrier->num_hashed_pages;
      branch.chain = carrier->chain;
      branch.phase = Phase::kRunning;
      branch.num_planned = 0;
      forks_.push_back(&branch);
    }
    WriteSample(&branch, row, plan);
    flight->sample_owners.push_back(&branch);
  }
}

}  // namespace heddle::scheduler
