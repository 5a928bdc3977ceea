// The state that the parts of one scheduler share. The scheduler owns all of it.
#pragma once

#include "scheduler/page_allocator.h"
#include "scheduler/running_set.h"
#include "scheduler/scheduler_limits.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"
#include "scheduler/step_budget.h"

namespace heddle::scheduler {

class AdapterPool;
class ClientShares;
class PrefixMatcher;

struct SchedulerParts {
  const SchedulerLimits& limits;
  const RequestMap& requests;
  PageAllocator& pool;
  StepBudget& budget;
  ClientShares& shares;
  PrefixMatcher& prefixes;
  AdapterPool& adapters;
  RunningSet& running;
  SchedulerStats& totals;  // only its counters are used

  // Pages beyond those needed for the present tokens. Every running sequence may need one more page
  // of each group before an admission turns out to be a mistake.
  int64_t SparePages(int64_t reserved_pages) const {
    return pool.num_free() - reserved_pages -
           static_cast<int64_t>(running.size()) * limits.num_groups;
  }
};

}  // namespace heddle::scheduler
