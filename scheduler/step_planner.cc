#include "scheduler/step_planner.h"

#include <algorithm>

#include "scheduler/adapter_pool.h"
#include "scheduler/client_shares.h"
#include "scheduler/pipeline.h"
#include "scheduler/plan_writer.h"
#include "scheduler/prefix_matcher.h"
#include "scheduler/token_budget.h"
#include "scheduler/workers.h"

namespace heddle::scheduler {

using engine::StepPlan;

bool StepPlanner::FitsWithoutPreemption() {
  ListRunning();
  return step_.reserved_pages <= parts_.pool.num_free();
}

void StepPlanner::Plan(int64_t now_us, bool is_ahead, StepPlan* plan, Flight* flight) {
  step_.Begin(now_us);
  step_.is_ahead = is_ahead;
  if (!is_ahead) step_.needs_tokens = false;
  parts_.prefixes.BeginStep();
  DropPassed();
  ChooseClients();
  ListRunning();
  const auto num_active = static_cast<int64_t>(parts_.running.size() - step_.paused.size());
  const int64_t streams = num_active + admission_.num_joining();
  const int32_t budget = PromptBudget(streams);
  const int32_t decodes = step_.decodes;
  admission_.Admit(budget, &step_);
  PrepareAdapters();
  FitAhead(FitDrafts(AssignRows(budget)));
  flight->planned_us = now_us;
  plan->feeds_drafter = step_.ahead.feeds_drafter;
  Write(plan, flight);
  step_.ahead = {};
  parts_.shares.EndStep();
  parts_.totals.held += step_.held;
  flight->has_pools = !plan->pools.empty();
  if (plan->token_ids.empty()) return;
  parts_.budget.CountPlan(flight->cost);
  parts_.totals.step_tokens += static_cast<int64_t>(plan->token_ids.size());
  parts_.totals.budget_tokens += decodes + budget;
}

// Gives back pages that the window of their layers has passed.
void StepPlanner::DropPassed() {
  if (!parts_.limits.has_windows) return;
  for (Sequence* sequence : parts_.running) {
    for (int32_t group = 0; group < parts_.limits.num_groups; ++group) {
      if (parts_.limits.options.windows[group] > 0) DropPassed(sequence, group);
    }
  }
}

// Full pages among them are left to the prefix cache first. Group 0 keeps one hashed page, because
// the next page's hash and its place in the cache depend on it. Of a context with parts, only the
// first one is passed: no row of a later part has a smaller position than its end.
void StepPlanner::DropPassed(Sequence* sequence, int32_t group) {
  const SchedulerOptions& options = parts_.limits.options;
  PageTable& table = sequence->tables[group];
  // All rows of a draft in flight may be dropped, the first too: they run again and see as far
  // back.
  const int32_t in_draft = sequence->num_drafted > 0 ? sequence->num_drafted + 1 : 0;
  const int32_t passable =
      std::min(sequence->num_computed(), sequence->request->layout.first_end());
  int32_t drop = passable - in_draft + 1 - options.windows[group];
  const int32_t grain = parts_.limits.GrainOf(group);
  if (drop < table.num_dropped() + std::max(grain, options.page_tokens)) return;
  parts_.prefixes.Leave(sequence);
  if (group == 0 && sequence->num_hashed_pages > 0) {
    drop = std::min(drop, (sequence->num_hashed_pages - 1) * options.page_tokens);
  }
  drop -= drop % grain;
  table.DropFront(drop, &parts_.pool);
}

// Chooses the clients that get rows in this step.
void StepPlanner::ChooseClients() {
  ClientShares& shares = parts_.shares;
  shares.BeginStep();
  if (!shares.is_enabled()) return;
  for (const Sequence* sequence : parts_.running) {
    const int32_t remaining = sequence->num_remaining();
    if (remaining <= 0 || sequence->request->paused || !AdapterPool::IsReady(*sequence)) continue;
    StepCost cost;
    if (remaining == 1) cost = {.rows = 1, .attended = sequence->num_tokens(), .sequences = 1};
    shares.Want(sequence->request->flow, cost);
  }
  for (const int32_t flow : admission_.waiting_flows()) shares.Await(flow);
  shares.Choose(step_.now_us);
}

// Sorts the running sequences into decodes and prompts. A sequence that the steps in flight end has
// nothing left to run, and its place is free; one that waits for its next token, or for what
// becomes of its draft, keeps its place, so does one that waits for its adapter, which is listed as
// a prompt, and so does a paused one until somebody needs its place. So does one whose client is
// held.
void StepPlanner::ListRunning() {
  step_.prompts.clear();
  step_.paused.clear();
  step_.slots = 0;
  step_.reserved_pages = 0;
  step_.decodes = 0;
  step_.held = 0;
  step_.decoding.clear();
  int32_t in_flight = 0;
  for (Sequence* sequence : parts_.running) {
    parts_.prefixes.GoOn(sequence);
    const int32_t remaining = sequence->num_remaining();
    sequence->num_planned = 0;
    if (sequence->ends()) continue;
    step_.slots += NumSlots(*sequence);
    if (sequence->request->paused) {
      step_.paused.push_back(sequence);
      continue;
    }
    const bool is_worker = sequence->request->has_workers() && sequence->request->forked;
    if (remaining <= 0 || (is_worker && !IsReady(*sequence))) {
      ++in_flight;
      continue;
    }
    step_.reserved_pages += parts_.limits.PagesToRun(*sequence, parts_.pool);
    const bool is_ready = AdapterPool::IsReady(*sequence);
    if (is_ready && parts_.shares.IsHeld(sequence->request->flow)) {
      ++step_.held;
      continue;
    }
    const bool has_one_row = remaining == 1 || is_worker;
    if (has_one_row && is_ready && !parts_.limits.options.whole_prompts) {
      sequence->num_planned = 1;
      step_.decoding.push_back(sequence);
    } else {
      step_.prompts.push_back(sequence);
    }
  }
  const int32_t stages = parts_.limits.options.pipeline_stages;
  if (stages > 1) KeepGroup(in_flight, stages, &step_.decoding);
  step_.decodes = static_cast<int32_t>(step_.decoding.size());
}

// The prompt rows of the step.
int32_t StepPlanner::PromptBudget(int64_t streams) {
  const int32_t budget = parts_.budget.PromptRows(step_, parts_.running, streams);
  const int32_t stages = parts_.limits.options.pipeline_stages;
  if (stages == 1) return budget;
  StepCost prompts = admission_.unstarted();
  for (const Sequence* prompt : step_.prompts) {
    // A grammar may have forced several tokens behind a prompt that is read.
    const int32_t end = std::max(prompt->request->num_prompt(), prompt->num_recompute);
    const bool is_read = prompt->num_computed() >= end;
    const int64_t first = is_read ? prompt->num_computed() : prompt->num_found;
    const int64_t tokens = prompt->num_tokens();
    prompts.rows += tokens - first;
    prompts.attended += (tokens * (tokens + 1) - first * (first + 1)) / 2;
  }
  const int64_t context = step_.prompts.empty() ? 0 : step_.prompts.front()->num_computed();
  return std::min(budget, parts_.budget.ChunkRows(prompts, context));
}

// Chooses which pages of adapters this step loads, and leaves out the sequences that wait for more.
void StepPlanner::PrepareAdapters() {
  if (admission_.num_with_adapter() == 0) return;
  const bool has_others =
      step_.decodes > 0 || std::any_of(step_.prompts.begin(), step_.prompts.end(),
                                       [](const Sequence* s) { return AdapterPool::IsReady(*s); });
  parts_.adapters.ChooseLoads(has_others, parts_.running, step_.now_us);
  std::erase_if(step_.prompts, [](const Sequence* s) { return !AdapterPool::IsReady(*s); });
}

// Gives rows to as many prompts as the step takes, the most urgent ones first, and none to others.
void StepPlanner::TakeWholePrompts() {
  int32_t left = parts_.limits.options.max_step_tokens - step_.decodes;
  for (Sequence* prompt : step_.prompts) {
    const int32_t rows = prompt->num_remaining();
    prompt->num_planned = rows <= left ? rows : 0;
    left -= prompt->num_planned;
  }
}

void StepPlanner::SharePrompts(int32_t budget) {
  std::sort(step_.prompts.begin(), step_.prompts.end(), MoreUrgent());
  if (parts_.limits.options.whole_prompts) return TakeWholePrompts();
  step_.wants.clear();
  for (const Sequence* prompt : step_.prompts) {
    const int32_t in_part = prompt->request->layout.RowsAt(prompt->num_computed());
    step_.wants.push_back(std::min(prompt->num_remaining(), in_part));
  }
  step_.shares.resize(step_.wants.size());
  ShareBudget(step_.wants, budget, step_.shares);
  for (size_t i = 0; i < step_.prompts.size(); ++i) {
    step_.prompts[i]->num_planned = step_.shares[i];
  }
}

// Chooses the rows. Returns the number of free pages that they take. If those that are not held get
// no pages for any row, nobody is held: one that is may have the pages, and goes on.
int32_t StepPlanner::AssignRows(int32_t budget) {
  SharePrompts(budget);
  for (const Sequence* sequence : parts_.running) {
    if (sequence->num_planned > 0) parts_.shares.Offer(sequence->request->flow);
  }
  if (!step_.is_ahead) admission_.ParkForPages(&step_);
  const int32_t reserved = AssignPages();
  if (step_.held == 0 || HasRows()) return reserved;
  parts_.shares.Release();
  ListRunning();
  std::erase_if(step_.prompts, [](const Sequence* s) { return !AdapterPool::IsReady(*s); });
  SharePrompts(std::min(budget, parts_.limits.options.max_step_tokens - step_.decodes));
  if (!step_.is_ahead) admission_.ParkForPages(&step_);
  return AssignPages();
}

bool StepPlanner::HasRows() const {
  return std::any_of(parts_.running.begin(), parts_.running.end(),
                     [](const Sequence* s) { return s->num_planned > 0; });
}

// Returns the number of free pages that the planned rows take.
int32_t StepPlanner::AssignPages() {
  int32_t reserved = 0;
  for (size_t i = 0; i < parts_.running.size(); ++i) {
    Sequence* sequence = parts_.running[i];
    if (sequence->num_planned == 0) continue;
    if (!sequence->request->has_workers() || !sequence->request->forked) {
      reserved += FitPages(sequence, i, reserved);
      continue;
    }
    size_t last = i;  // of the workers, which follow each other
    while (last + 1 < parts_.running.size() &&
           parts_.running[last + 1]->request == sequence->request) {
      ++last;
    }
    reserved += FitWorkers(i, last, reserved);
    i = last;
  }
  return reserved;
}

// Gives the drafts what rows and pages are left: nobody is preempted for a draft, no prompt waits
// for it, and where adapters are in use it takes none but empty pages, so that no adapter is
// evicted. `reserved`: free pages that the other rows take. Returns the pages that are left.
int32_t StepPlanner::FitDrafts(int32_t reserved) {
  const PageAllocator& pool = parts_.pool;
  const bool has_adapters = parts_.adapters.num_pages() > 0;
  int32_t pages = pool.num_free() - reserved - (has_adapters ? pool.num_evictable() : 0);
  const auto has_draft = [](const Sequence* s) { return !s->draft.empty(); };
  if (std::none_of(parts_.running.begin(), parts_.running.end(), has_draft)) return pages;
  int32_t rows = parts_.limits.options.max_step_tokens;
  for (const Sequence* sequence : parts_.running) rows -= sequence->num_planned;
  for (Sequence* sequence : parts_.running) {
    if (sequence->num_planned != 1 || sequence->draft.empty()) continue;
    const KvTables& tables = sequence->tables;
    const int32_t own = tables.PagesNeeded(1, pool);
    const int32_t fitting = tables.Capacity(own + std::max(0, pages), pool) - 1;
    const int32_t wanted = std::min(static_cast<int32_t>(sequence->draft.size()), rows);
    sequence->num_drafted = std::clamp(fitting, 0, wanted);
    sequence->num_planned += sequence->num_drafted;
    rows -= sequence->num_drafted;
    pages -= tables.PagesNeeded(sequence->num_planned, pool) - own;
  }
  return pages;
}

// How many tokens a drafter may guess behind the sample that the step draws for the sequence; 0: it
// draws none. The last token of an answer needs no guess, and branches that are about to fork still
// share the page that guesses would go to.
int32_t StepPlanner::MaxAhead(const Sequence& sequence) const {
  const RequestState& request = *sequence.request;
  const bool draws = sequence.num_planned > 0 && !request.request.draft.off &&
                     sequence.num_planned - sequence.num_drafted == sequence.num_remaining();
  if (!draws || (!request.forked && request.live_branches > 1)) return 0;
  if (!request.layout.is_plain()) return 0;  // it takes no draft (Scheduler::MaxDraft)
  const int32_t left =
      std::min(request.request.max_tokens - static_cast<int32_t>(sequence.generated.size()) - 2,
               request.max_context - sequence.num_computed() - sequence.num_planned -
                   parts_.limits.options.rows_beyond_guesses);
  const int32_t most = request.request.draft.max_tokens;
  const int32_t wanted = std::min({left, step_.ahead.tokens, sequence.max_ahead});
  return std::max(0, most < 0 ? wanted : std::min(wanted, most));
}

// Gives the guesses of the drafter beside the model places in pages that nothing else needs in this
// step: of `pages` free ones, and in the sequences' own.
void StepPlanner::FitAhead(int32_t pages) {
  const PageAllocator& pool = parts_.pool;
  const int32_t beyond = parts_.limits.options.rows_beyond_guesses;
  for (Sequence* sequence : parts_.running) {
    sequence->num_ahead = 0;
    if (step_.ahead.tokens == 0) continue;
    const int32_t wanted = MaxAhead(*sequence);
    if (wanted == 0) continue;
    const KvTables& tables = sequence->tables;
    const int32_t own = tables.PagesNeeded(sequence->num_planned, pool);
    const int32_t fitting = tables.Capacity(own + std::max(0, pages), pool) - sequence->num_planned;
    if (fitting > beyond) sequence->num_ahead = std::min(fitting, wanted + beyond);
    pages -= tables.PagesNeeded(sequence->num_planned + sequence->num_ahead, pool) - own;
  }
}

// Takes the pages of guesses and writes their slots. They are taken before pages that leave the
// prefix cache are written to the host's tier, and given back when nothing takes pages any more.
// From then on pages that are given back may be those of this step.
void StepPlanner::TakeAhead(StepPlan* plan) {
  PageAllocator& pool = parts_.pool;
  for (Sequence* sequence : parts_.running) {
    if (sequence->num_ahead == 0) continue;
    sequence->tables.Append(sequence->num_ahead, &pool, &plan->page_copies);
    WriteAheadSlots(sequence, pool.page_tokens(), plan);
  }
}

void StepPlanner::GiveBackAhead(uint64_t step) {
  if (parts_.limits.options.holds_pages) parts_.pool.HoldReleases(step);
  for (Sequence* sequence : parts_.running) {
    if (sequence->num_ahead == 0) continue;
    sequence->tables.Truncate(sequence->num_computed() - sequence->num_ahead, &parts_.pool);
  }
}

// Returns the number of pages for the index-th running sequence, out of the free ones minus
// `reserved`. It preempts others behind it in the list, except when planning ahead, because the
// victim's last token may not be known yet. If pages are still missing, the sequence gets fewer
// rows in this step.
int32_t StepPlanner::FitPages(Sequence* sequence, size_t index, int32_t reserved) {
  PageAllocator& pool = parts_.pool;
  KvTables& tables = sequence->tables;
  int32_t need = tables.PagesNeeded(sequence->num_planned, pool);
  if (step_.is_ahead && need > pool.num_free() - reserved) step_.needs_tokens = true;
  while (!step_.is_ahead && need > pool.num_free() - reserved &&
         parts_.running.size() > index + 1) {
    admission_.PreemptBehind(index, &step_);
    need = tables.PagesNeeded(sequence->num_planned, pool);
  }
  int32_t available = pool.num_free() - reserved;
  if (need > available && !step_.is_ahead && tables.Capacity(available, pool) == 0 &&
      tables.TakeOverTail(&pool)) {
    need = tables.PagesNeeded(sequence->num_planned, pool);
    available = pool.num_free() - reserved;
  }
  if (need <= available) return need;
  if (parts_.limits.options.whole_prompts) {
    sequence->num_planned = 0;
    return 0;
  }
  sequence->num_planned = std::min(sequence->num_planned, tables.Capacity(available, pool));
  return tables.PagesNeeded(sequence->num_planned, pool);
}

void StepPlanner::Write(StepPlan* plan, Flight* flight) {
  // From here on no page is freed, so no copy of this step writes a page that another copy reads.
  for (Sequence* sequence : parts_.running) {
    sequence->tables.Append(sequence->num_planned, &parts_.pool, &plan->page_copies);
  }
  TakeAhead(plan);
  WriteAdapters(plan);
  flight->num_adapter_loads = static_cast<int32_t>(plan->adapter_loads.size());
  parts_.pool.FlushReleases();
  parts_.prefixes.EndStep(plan);
  GiveBackAhead(plan->step);
  flight->num_swaps = static_cast<int32_t>(plan->swaps_out.size() + plan->swaps_in.size());
  parts_.totals.pages_swapped_out += static_cast<int64_t>(plan->swaps_out.size());
  parts_.totals.pages_swapped_in += static_cast<int64_t>(plan->swaps_in.size());
  for (Sequence* sequence : parts_.running) {
    if (sequence->num_planned == 1) WriteSequence(sequence, plan, flight);
  }
  for (Sequence* sequence : parts_.running) {
    if (sequence->num_planned > 1) WriteSequence(sequence, plan, flight);
  }
  for (Sequence* fork : step_.forks) parts_.running.Insert(fork);
}

// Loads come before copies of pages: no page that a copy reads is free to be loaded to yet.
void StepPlanner::WriteAdapters(StepPlan* plan) {
  if (admission_.num_with_adapter() == 0) return;
  parts_.adapters.Write(plan, &step_.locals);
  const int32_t left =
      parts_.limits.options.adapter_load_pages - static_cast<int32_t>(plan->adapter_loads.size());
  if (HasRows() && left > 0) admission_.Prefetch(left, &step_, plan);
}

void StepPlanner::CountRows(const Sequence& sequence, Flight* flight) {
  const int32_t rows = sequence.num_planned;
  const int32_t begin = sequence.num_computed() - rows;
  // Row i attends to begin + 1 + i positions.
  const StepCost cost{.rows = rows,
                      .attended = int64_t{rows} * (begin + sequence.num_computed() + 1) / 2,
                      .sequences = 1};
  flight->cost += cost;
  parts_.shares.CountRows(sequence.request->flow, cost);
  switch (SliceKindOf(sequence)) {
    case engine::SliceKind::kPrompt:
      parts_.totals.prompt_tokens += rows;
      step_.Note(sequence, StepNote::Kind::kPrompt, rows);
      break;
    case engine::SliceKind::kDecode:
      step_.Note(sequence, StepNote::Kind::kDecode, 1);
      break;
    case engine::SliceKind::kDraft:
      step_.Note(sequence, StepNote::Kind::kDraft, rows);
      break;
  }
  parts_.totals.recomputed_tokens += std::clamp(sequence.num_recompute - begin, 0, rows);
}

void StepPlanner::WriteSequence(Sequence* sequence, StepPlan* plan, Flight* flight) {
  RequestState* request = sequence->request;
  if (!request->started) {
    request->started = true;
    request->queued_us = step_.now_us - request->arrival_us;
    admission_.CountStarted(*request);
  }
  CountRows(*sequence, flight);
  if (sequence->adapter_slot >= 0) {
    parts_.adapters.CountRows(sequence->adapter_slot, plan->step);
  }
  const auto first_score = static_cast<int32_t>(plan->scores.size());
  const int32_t row = WriteSlice(sequence, parts_.limits, plan, &step_.locals);
  const int32_t num_scores = static_cast<int32_t>(plan->scores.size()) - first_score;
  if (num_scores > 0) flight->score_owners.push_back({request, first_score, num_scores});
  // An answer's pages are left to the cache when the sequence gives them up: the next turn asks for
  // them.
  if (!request->forked || sequence->num_planned > 1 + sequence->num_drafted)
    parts_.prefixes.Leave(sequence);
  if (request->has_workers()) {  // their blocks begin on pages of their own
    sequence->tables.SkipPlaces(request->layout.HolesAt(sequence->num_computed()));
  }
  if (sequence->num_remaining() > 0) return;
  if (!request->forked) {
    WriteFork(sequence, row, plan, flight);
  } else if (!sequence->is_over) {
    WriteDraw(sequence, row, plan, flight);
  }
}

// The carrier's prompt is complete with this step: from now on all branches share its pages, and
// they draw their first tokens from the same row.
void StepPlanner::WriteFork(Sequence* carrier, int32_t row, StepPlan* plan, Flight* flight) {
  RequestState* request = carrier->request;
  request->forked = true;
  if (request->request.max_tokens == 0) {
    flight->prompts_only.push_back(request);
    return;
  }
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kFinished) continue;
    if (&branch != carrier) {
      branch.tables.ForkFrom(carrier->tables, &parts_.pool);
      branch.num_hashed_pages = carrier->num_hashed_pages;
      branch.chain = carrier->chain;
      parts_.adapters.UseAs(*carrier, &branch);
      branch.phase = Phase::kRunning;
      branch.num_planned = 0;
      step_.forks.push_back(&branch);
    }
    if (!request->has_workers()) {
      WriteDraw(&branch, row, plan, flight);
    } else {
      branch.generated.swap(branch.block);
    }
  }
}

void StepPlanner::WriteDraw(Sequence* sequence, int32_t row, StepPlan* plan, Flight* flight) {
  sequence->drawn_step = plan->step;
  WriteSample(sequence, row - sequence->num_drafted, plan, &step_.locals);
  const engine::SampleRow& sample = plan->samples.back();
  flight->samples.push_back(
      {sequence, sequence->num_tokens() + sequence->num_expected, sample.num_rows});
  if (sequence->num_ahead == 0) return;
  ++parts_.totals.ahead_requests;
  plan->drafts_ahead.push_back(
      {.sample = static_cast<int32_t>(plan->samples.size()) - 1,
       .num_tokens = sequence->num_ahead - parts_.limits.options.rows_beyond_guesses,
       .slot_begin = sequence->ahead_slot,
       .num_slots = sequence->num_ahead,
       .min_survival = step_.ahead.min_survival,
       .max_catch_up = step_.ahead.max_catch_up});
}

}  // namespace heddle::scheduler
