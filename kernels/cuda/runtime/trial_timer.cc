#include "kernels/cuda/runtime/trial_timer.h"

#include <algorithm>

#include "base/status.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kBegin = Runtime::kStepMarks;
constexpr int kEnd = Runtime::kStepMarks + 1;

}  // namespace

TrialTimer::TrialTimer(Runtime& runtime) : runtime_(runtime) {
  const absl::StatusOr<void*> cold = runtime_.AllocateDevice(kColdBytes);
  if (cold.ok()) cold_ = static_cast<uint8_t*>(*cold);
}

TrialTimer::~TrialTimer() { runtime_.FreeDevice(cold_, kColdBytes); }

absl::StatusOr<int64_t> TrialTimer::Time(const std::function<absl::Status()>& enqueue) {
  HEDDLE_RETURN_IF_ERROR(enqueue());
  HEDDLE_ASSIGN_OR_RETURN(int64_t best, Run(enqueue));
  for (int i = 1; i < kRuns; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t ns, Run(enqueue));
    best = std::min(best, ns);
  }
  return best;
}

absl::StatusOr<int64_t> TrialTimer::Run(const std::function<absl::Status()>& enqueue) {
  constexpr int64_t kHalf = kColdBytes / 2;
  if (cold_ != nullptr) HEDDLE_RETURN_IF_ERROR(runtime_.CopyOnDevice(cold_, cold_ + kHalf, kHalf));
  HEDDLE_RETURN_IF_ERROR(runtime_.Mark(kBegin));
  HEDDLE_RETURN_IF_ERROR(enqueue());
  HEDDLE_RETURN_IF_ERROR(runtime_.Mark(kEnd));
  HEDDLE_RETURN_IF_ERROR(runtime_.WaitForMark(kEnd));
  return runtime_.NsBetween(kBegin, kEnd);
}

}  // namespace heddle::kernels::cuda
