#include "server/cli/answer_bench.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "server/loop/engine_loop.h"

namespace heddle::server {
namespace {

using Clock = std::chrono::steady_clock;

// An executor that a loop may own while the model stays the caller's.
class BorrowedExecutor final : public engine::Executor {
 public:
  explicit BorrowedExecutor(engine::Executor& executor) : executor_(executor) {}
  const engine::ExecutorLimits& limits() const override { return executor_.limits(); }
  int32_t max_in_flight() const override { return executor_.max_in_flight(); }
  absl::Status Submit(const engine::StepPlan& plan, const engine::StepLocals& locals) override {
    return executor_.Submit(plan, locals);
  }
  absl::Status Wait(engine::StepResult* result) override { return executor_.Wait(result); }

 private:
  engine::Executor& executor_;
};

// The answers' events, on the loop's thread, and their end.
class Answers {
 public:
  explicit Answers(int32_t count) : open_(count) {}

  void Take(const GenerationEvent& event) {
    std::lock_guard lock(mutex_);
    last_ = Clock::now();
    if (!has_begun_) first_ = last_;
    has_begun_ = true;
    if (!event.error.ok()) error_ = event.error;
    if (event.finished && --open_ == 0) ended_.notify_all();
  }

  absl::StatusOr<double> WaitForSeconds() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return open_ == 0; });
    HEDDLE_RETURN_IF_ERROR(error_);
    return std::chrono::duration<double>(last_ - first_).count();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  // GUARDED_BY(mutex_), all of the following.
  int32_t open_;
  bool has_begun_ = false;
  Clock::time_point first_, last_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<DraftTiming> WriteAnswers(engine::Executor& executor, const DraftBenchShape& shape,
                                         const SpeculationOptions& speculation) {
  EngineLoopOptions options;
  options.prefix_cache = false;
  options.max_queue = 2 * shape.batch;  // one client never gets all of it
  options.speculation = speculation;
  Answers answers(shape.batch);
  EngineLoop loop(std::make_unique<BorrowedExecutor>(executor), options);
  const auto prompt = shape.text.first(static_cast<size_t>(shape.prompt_tokens));
  for (int32_t i = 0; i < shape.batch; ++i) {
    GenerationRequest request;
    request.id = loop.NextId();
    request.prompt.assign(prompt.begin(), prompt.end());
    request.max_tokens = static_cast<int32_t>(shape.text.size()) - shape.prompt_tokens;
    request.sampling.temperature = 0.0f;
    HEDDLE_RETURN_IF_ERROR(loop.Submit(std::move(request),
                                       [&](const GenerationEvent& event) { answers.Take(event); }));
  }
  HEDDLE_ASSIGN_OR_RETURN(const double seconds, answers.WaitForSeconds());
  loop.Drain(Clock::now() + std::chrono::seconds(1));
  const EngineStats stats = loop.Stats();
  return DraftTiming{.seconds = seconds, .steps = stats.steps, .drafts = stats.drafts};
}

}  // namespace heddle::server
