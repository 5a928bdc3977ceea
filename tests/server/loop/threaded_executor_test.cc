// The executor with a thread of its own, over one that counts and can be held.
#include "engine/threaded_executor.h"

#include <atomic>
#include <future>
#include <thread>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

// Answers with the step's number, on whichever thread it is asked.
class CountingExecutor final : public Executor {
 public:
  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan, const StepLocals&) override {
    step_ = plan.step;
    return absl::OkStatus();
  }
  absl::Status Wait(StepResult* result) override {
    if (began) began->set_value(std::this_thread::get_id());
    if (hold) hold->wait();
    result->step = step_;
    return step_ == fails_at ? absl::UnavailableError("the device is gone") : absl::OkStatus();
  }

  std::promise<std::thread::id>* began = nullptr;
  std::future<void>* hold = nullptr;
  uint64_t fails_at = 0;

 private:
  ExecutorLimits limits_{.num_pages = 7};
  uint64_t step_ = 0;
};

TEST_CASE("A step runs while its submitter does something else", "[engine][unit]") {
  std::promise<std::thread::id> began;
  std::promise<void> open;
  std::future<void> opened = open.get_future();
  auto counting = std::make_unique<CountingExecutor>();
  counting->began = &began;
  counting->hold = &opened;
  ThreadedExecutor executor(std::move(counting));
  StepPlan plan;
  plan.step = 3;
  REQUIRE(executor.Submit(plan, {}).ok());
  // It has begun on another thread, and nobody has waited for it.
  CHECK(began.get_future().get() != std::this_thread::get_id());
  open.set_value();
  StepResult result;
  REQUIRE(executor.Wait(&result).ok());
  CHECK(result.step == 3);
}

TEST_CASE("Every plan is answered once, whichever thread takes it", "[engine][unit]") {
  ThreadedExecutor executor(std::make_unique<CountingExecutor>());
  CHECK(executor.limits().num_pages == 7);
  StepPlan plan;
  StepResult result;
  for (uint64_t step = 1; step <= 2000; ++step) {
    plan.step = step;
    REQUIRE(executor.Submit(plan, {}).ok());
    if (step % 2 == 0) std::this_thread::yield();
    REQUIRE(executor.Wait(&result).ok());
    REQUIRE(result.step == step);
  }
}

TEST_CASE("A failed step says so, and the next one runs", "[engine][unit]") {
  auto counting = std::make_unique<CountingExecutor>();
  counting->fails_at = 1;
  ThreadedExecutor executor(std::move(counting));
  StepPlan plan;
  StepResult result;
  plan.step = 1;
  REQUIRE(executor.Submit(plan, {}).ok());
  CHECK(absl::IsUnavailable(executor.Wait(&result)));
  plan.step = 2;
  REQUIRE(executor.Submit(plan, {}).ok());
  CHECK(executor.Wait(&result).ok());
}

TEST_CASE("It can end with a plan that nobody waited for", "[engine][unit]") {
  ThreadedExecutor executor(std::make_unique<CountingExecutor>());
  StepPlan plan;
  REQUIRE(executor.Submit(plan, {}).ok());
}

}  // namespace
}  // namespace heddle::engine
