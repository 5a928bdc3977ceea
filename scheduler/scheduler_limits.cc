#include "scheduler/scheduler_limits.h"

#include <algorithm>

#include "base/check.h"

namespace heddle::scheduler {

int32_t SchedulerLimits::MaxContext(const SchedulerOptions& options, int32_t adapter_pages,
                                    int32_t first_end) {
  return options.page_rule().LongestWithin(int64_t{options.num_pages} - adapter_pages,
                                           options.windows, options.max_context, first_end);
}

SchedulerLimits::SchedulerLimits(const SchedulerOptions& given)
    : options(given),
      max_context(MaxContext(given)),
      max_running(std::min(given.max_step_seqs, given.max_step_tokens)),
      num_groups(static_cast<int32_t>(given.windows.size())),
      has_windows(std::any_of(given.windows.begin(), given.windows.end(),
                              [](int32_t window) { return window > 0; })),
      counts_positions(given.counts_positions()) {
  HEDDLE_CHECK(given.max_context > 0 && max_running > 0, "a limit of the scheduler is not set");
  HEDDLE_CHECK(num_groups > 0, "a model has at least one group of layers");
  for (size_t group = 0; group < options.windows.size(); ++group) {
    const int64_t pages = options.page_rule().MostPagesOf(max_context, options.windows, group);
    most_pages.push_back(static_cast<int32_t>(pages));
  }
}

// Pages of what workers have behind their prompt, if that is still to be computed for all of them.
int32_t SchedulerLimits::PagesOfBlocks(const RequestState& request) const {
  if (!request.has_workers() || request.forked) return 0;
  int32_t pages = 0;
  for (const Sequence& worker : request.branches) {
    const auto tokens = static_cast<int32_t>(worker.block.size());
    pages += (tokens + options.page_tokens - 1) / options.page_tokens;
  }
  return pages * num_groups;
}

int32_t SchedulerLimits::PagesToRun(const Sequence& sequence, const PageAllocator& pool) const {
  const int32_t tokens = sequence.num_remaining();
  const RequestState& request = *sequence.request;
  int32_t pages = PagesOfBlocks(request);
  if (!has_windows) return pages + sequence.tables.PagesNeeded(tokens, pool);
  for (int32_t group = 0; group < num_groups; ++group) {
    const PageTable& table = sequence.tables[group];
    int32_t most = most_pages[group];
    if (!request.layout.is_plain()) {
      most = static_cast<int32_t>(
          options.page_rule().MostPagesOf(request.max_context, options.windows,
                                          static_cast<size_t>(group), request.layout.first_end()));
    }
    pages += std::min(table.PagesNeeded(tokens, pool), std::max(0, most - table.num_pages()));
  }
  return pages;
}

}  // namespace heddle::scheduler
