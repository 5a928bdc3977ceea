// The planner's part for workers that see each other (workers.h).
#include "scheduler/step_planner.h"

namespace heddle::scheduler {

// FitPages for the workers of one request, [first, last] of the running sequences: all of them get
// their row, or none does.
int32_t StepPlanner::FitWorkers(size_t first, size_t last, int32_t reserved) {
  const PageAllocator& pool = parts_.pool;
  const auto needed = [&] {
    int32_t pages = 0;
    for (size_t i = first; i <= last; ++i) {
      const Sequence* worker = parts_.running[i];
      pages += worker->tables.PagesNeeded(worker->num_planned, pool);
    }
    return pages;
  };
  int32_t need = needed();
  if (step_.is_ahead && need > pool.num_free() - reserved) step_.needs_tokens = true;
  while (!step_.is_ahead && need > pool.num_free() - reserved && parts_.running.size() > last + 1) {
    admission_.PreemptBehind(last, &step_);
    need = needed();
  }
  if (need <= pool.num_free() - reserved) return need;
  for (size_t i = first; i <= last; ++i) parts_.running[i]->num_planned = 0;
  return 0;
}

}  // namespace heddle::scheduler
