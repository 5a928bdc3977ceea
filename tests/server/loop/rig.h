// The engine loop over a FakeExecutor, for its tests. Nothing sleeps: a Gate holds the executor
// where a test needs the loop to be in the middle of a step, and answers are waited for.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/threaded_executor.h"
#include "server/loop/engine_loop.h"
#include "tests/support/fake_executor.h"

namespace heddle::server {

using engine::TokenId;
using std::chrono_literals::operator""h;

inline constexpr int32_t kVocab = 1000;

inline engine::ExecutorLimits Limits() {
  return {.num_pages = 64,
          .page_tokens = 4,
          .max_context = 200,
          .max_batch_tokens = 32,
          .max_batch_seqs = 8,
          .vocab = kVocab};
}

inline GenerationRequest MakeRequest(EngineLoop& loop, int32_t num_prompt, int32_t max_tokens) {
  GenerationRequest request;
  request.id = loop.NextId();
  int32_t salt = static_cast<int32_t>(request.id);
  for (int32_t i = 0; i < num_prompt; ++i) request.prompt.push_back((i * 7 + salt * 31) % kVocab);
  request.max_tokens = max_tokens;
  request.sampling.seed = static_cast<uint64_t>(salt);
  return request;
}

// The events that a request's sink got. It outlives the sinks, which keep it alive.
class Answer {
 public:
  void Take(GenerationEvent&& event) {
    std::lock_guard lock(mutex_);
    if (event.finished) {
      reasons_[event.branch] = event.reason;
      error_ = event.error;
    }
    queued_seconds_ = std::max(queued_seconds_, event.queued_seconds);
    for (const auto& token : event.tokens) tokens_[event.branch].push_back(token.token);
    changed_.notify_all();
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_[0].size() >= count; });
  }
  // Waits until `branches` branches have finished.
  void WaitForEnd(size_t branches = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reasons_.size() >= branches; });
  }
  std::vector<TokenId> tokens(int32_t branch = 0) {
    std::lock_guard lock(mutex_);
    return tokens_[branch];
  }
  FinishReason reason(int32_t branch = 0) {
    std::lock_guard lock(mutex_);
    return reasons_.at(branch);
  }
  absl::Status error() {
    std::lock_guard lock(mutex_);
    return error_;
  }
  double queued_seconds() {
    std::lock_guard lock(mutex_);
    return queued_seconds_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int32_t, std::vector<TokenId>> tokens_;
  std::map<int32_t, FinishReason> reasons_;
  absl::Status error_;
  double queued_seconds_ = -1;
};

inline EventSink SinkOf(const std::shared_ptr<Answer>& answer) {
  return [answer](GenerationEvent&& event) { answer->Take(std::move(event)); };
}

// Holds the executor in Wait until it is opened.
class Gate {
 public:
  absl::Status Pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    return error_;
  }
  void WaitForArrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return arrived_ > 0; });
  }
  void Open(absl::Status error = absl::OkStatus()) {
    std::lock_guard lock(mutex_);
    is_open_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int arrived_ = 0;
  absl::Status error_;
};

struct LoopUnderTest {
  explicit LoopUnderTest(EngineLoopOptions options = {},
                         const engine::ExecutorLimits& limits = Limits(), bool gated = false,
                         bool threaded = false, int32_t max_in_flight = 1) {
    auto fake = std::make_unique<test::FakeExecutor>(limits, max_in_flight);
    executor = fake.get();
    if (gated) fake->set_before_result([gate = gate] { return gate->Pass(); });
    std::unique_ptr<engine::Executor> runs = std::move(fake);
    if (threaded) runs = std::make_unique<engine::ThreadedExecutor>(std::move(runs));
    loop = std::make_unique<EngineLoop>(std::move(runs), options);
  }
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  test::FakeExecutor* executor;
  std::unique_ptr<EngineLoop> loop;
};

inline EngineLoop::Clock::time_point InAnHour() { return EngineLoop::Clock::now() + 1h; }

}  // namespace heddle::server
