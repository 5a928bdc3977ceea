#include "server/loop/engine_loop_options.h"

#include <algorithm>

#include "scheduler/scheduler.h"

namespace heddle::server {

namespace {

// Bytes per microsecond at which pages of adapters are copied: half of what PCIe 4.0 x16 and a core
// that copies memory both reach, because neither is idle. 12 GB/s.
constexpr double kAdapterBytesPerUs = 12e3;
// Time that these copies may add to a step of other sequences: a tenth of 10 ms, a decode step of
// 256 streams of an 8B model on a GPU (docs/decisions/0022).
constexpr double kAdapterLoadUs = 1000;

}  // namespace

scheduler::SchedulerOptions SchedulerOptionsFor(const engine::ExecutorLimits& limits,
                                                const EngineLoopOptions& options) {
  int32_t step_tokens = limits.max_batch_tokens;
  if (options.max_step_tokens > 0 && !limits.whole_prompts) {
    step_tokens = std::min(step_tokens, options.max_step_tokens);
  }
  const double adapter_page_us =
      std::max(1.0, static_cast<double>(limits.page_bytes) / kAdapterBytesPerUs);
  return {.num_pages = limits.num_pages,
          .num_host_pages = limits.num_host_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .state_groups = limits.state_groups,
          .state_is_snapshot = limits.state_is_snapshot,
          .segments = limits.segments,
          .layers_have_windows = limits.layers_have_windows,
          .reads_pieces = limits.reads_pieces,
          .turns_queries = limits.turns_queries,
          .whole_prompts = limits.whole_prompts,
          .max_step_tokens = step_tokens,
          .max_step_seqs = limits.max_batch_seqs,
          .pipeline_stages = limits.pipeline_stages,
          .holds_pages = limits.pipeline_stages > 1 &&
                         (limits.max_ahead_tokens > 0 || limits.adapter_slots > 0),
          .target_step_us = options.target_inter_token_us,
          .max_queue_us = options.max_queue_us,
          .max_draft_tokens = limits.max_draft_tokens,
          .rows_beyond_guesses = limits.rows_beyond_guesses,
          .prefix_cache = options.prefix_cache && !limits.whole_prompts,
          .policy = options.policy,
          .starvation_us = options.starvation_us,
          .max_lead_us = options.max_lead_us,
          .adapter_slots = limits.adapter_slots,
          .adapter_load_pages = std::max(1, static_cast<int32_t>(kAdapterLoadUs / adapter_page_us)),
          .adapter_page_us = adapter_page_us};
}

BranchSupport BranchSupportOf(const engine::ExecutorLimits& limits) {
  const scheduler::SchedulerOptions options = SchedulerOptionsFor(limits, {});
  return {.no_concurrent = std::string(scheduler::Scheduler::CanJoin(options).message()),
          .no_workers = std::string(scheduler::Scheduler::CanWatch(options).message()),
          .max_joined_context = scheduler::SchedulerLimits::MaxContext(options, /*adapter_pages=*/0,
                                                                       /*first_end=*/0)};
}

void TakeSchedulerStats(const scheduler::SchedulerStats& now, EngineStats* stats) {
  AdapterStats& adapters = stats->adapters;
  adapters.loaded = now.adapters_resident;
  adapters.pages = now.adapter_pages;
  adapters.waiting_sequences = now.adapter_waiting;
  adapters.uses = now.adapter_uses;
  adapters.hits = now.adapter_hits;
  adapters.pages_loaded = now.adapter_pages_loaded;
  adapters.pages_evicted = now.adapter_pages_evicted;
  adapters.wait_seconds = static_cast<double>(now.adapter_wait_us) * 1e-6;
  stats->running_sequences = now.running_sequences;
  stats->paused_sequences = now.paused_sequences;
  stats->waiting_requests = now.waiting_requests;
  stats->waiting_tokens = now.waiting_tokens;
  stats->pages_used = now.pages_used;
  stats->pages_cached = now.pages_cached;
  stats->kept_contexts = now.kept_contexts;
  stats->host_pages_used = now.host_pages_used;
  stats->pages_swapped_out = now.pages_swapped_out;
  stats->pages_swapped_in = now.pages_swapped_in;
  stats->cached_tokens = now.cached_page_tokens;
  stats->prompt_tokens = now.prompt_tokens;
  stats->generated_tokens = now.generated_tokens;
  stats->forced_tokens = now.forced_tokens;
  stats->step_tokens = now.step_tokens;
  stats->budget_tokens = now.budget_tokens;
  stats->preemptions = now.preemptions;
  stats->overdue_requests = now.overdue;
  stats->held_sequences = now.held;
  stats->live_clients = now.live_clients;
}

}  // namespace heddle::server
