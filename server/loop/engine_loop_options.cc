#include "server/loop/engine_loop_options.h"

#include <algorithm>

namespace heddle::server {

namespace {

// Bytes per microsecond at which pages of adapters are copied: half of what PCIe 4.0 x16 and a core
// that copies memory both reach, because neither is idle. 12 GB/s.
constexpr double kAdapterBytesPerUs = 12e3;
// What these copies may add to a step of other sequences: a tenth of 10 ms, a decode step of 256
// streams of an 8B model on a GPU (docs/decisions/0022).
constexpr double kAdapterLoadUs = 1000;

}  // namespace

scheduler::SchedulerOptions SchedulerOptionsFor(const engine::ExecutorLimits& limits,
                                                const EngineLoopOptions& options) {
  int32_t step_tokens = limits.max_batch_tokens;
  if (options.max_step_tokens > 0) step_tokens = std::min(step_tokens, options.max_step_tokens);
  const double adapter_page_us =
      std::max(1.0, static_cast<double>(limits.page_bytes) / kAdapterBytesPerUs);
  return {.num_pages = limits.num_pages,
          .num_host_pages = limits.num_host_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .max_step_tokens = step_tokens,
          .max_step_seqs = limits.max_batch_seqs,
          .target_step_us = options.target_inter_token_us,
          .max_queue_us = options.max_queue_us,
          .max_draft_tokens = limits.max_draft_tokens,
          .prefix_cache = options.prefix_cache,
          .policy = options.policy,
          .starvation_us = options.starvation_us,
          .adapter_slots = limits.adapter_slots,
          .adapter_load_pages = std::max(1, static_cast<int32_t>(kAdapterLoadUs / adapter_page_us)),
          .adapter_page_us = adapter_page_us};
}

}  // namespace heddle::server
