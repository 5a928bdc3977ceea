#include "engine/text/work_budget.h"

#include <time.h>

#include "base/message.h"

namespace heddle::engine::text {
namespace {

double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

absl::Status WorkBudget::CheckSize(size_t bytes) const {
  if (bytes <= bytes_left_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      base::StrCat("the tokenizer's rules make the text larger than ", bytes_left_, " bytes"));
}

absl::Status WorkBudget::CheckTime() {
  // Reading the thread's clock is a system call; the other clock tells whether it is needed.
  constexpr Clock::duration kLook = std::chrono::milliseconds(5);
  const Clock::time_point now = Clock::now();
  if (looked_ == Clock::time_point()) looked_ = now;
  if (now - looked_ < kLook) return absl::OkStatus();
  looked_ = now;
  const double cpu_seconds = ThreadCpuSeconds();
  if (end_cpu_seconds_ < 0) end_cpu_seconds_ = cpu_seconds + cpu_seconds_;
  if (cpu_seconds <= end_cpu_seconds_) return absl::OkStatus();
  return absl::ResourceExhaustedError("the tokenizer's rules take too long on this text");
}

}  // namespace heddle::engine::text
