// Checks a step plan that came from elsewhere, before an executor trusts it: every index lies in
// the array or the pool that it points to, and every count is within the limits. A plan that passes
// may still be a bad plan, which computes nonsense; it cannot make an executor read or write what
// is not its own.
//
// Thread-safety: pure function.
#pragma once

#include "absl/status/status.h"
#include "engine/executor.h"
#include "engine/step.h"

namespace heddle::engine {

// INVALID_ARGUMENT, naming the array and the entry. O(what the plan holds).
absl::Status CheckPlan(const StepPlan& plan, const ExecutorLimits& limits);
// The same without a look at each span, for who has checked each of them and knows that slices have
// the sums of theirs: contexts are long.
absl::Status CheckPlanBesideSpans(const StepPlan& plan, const ExecutorLimits& limits);

}  // namespace heddle::engine
