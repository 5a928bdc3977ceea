// A GenerationService without an engine. Either it plays a reply by itself, a token per step, on a
// thread of its own as the engine loop does; or the test emits each event by hand.
//
// Thread-safety: all members from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/generation.h"

namespace heddle::test {

class FakeGeneration final : public server::GenerationService {
 public:
  // Byte tokens of the reply to a request, which may look at it. kEos is sent behind them unless
  // max_tokens ends the reply first.
  using Reply = std::function<std::string(const server::GenerationRequest&)>;

  FakeGeneration();                      // by hand
  explicit FakeGeneration(Reply reply);  // plays `reply`
  ~FakeGeneration() override;

  server::RequestId NextId() override;
  absl::Status Submit(server::GenerationRequest request, server::EventSink sink) override;
  void Cancel(server::RequestId id) override;
  void CancelBranch(server::RequestId id, int32_t branch) override;
  // Pauses are noted, and change nothing.
  void Pause(server::RequestId id) override;
  void Resume(server::RequestId id) override;
  void DropContext(scheduler::ContextId id) override;
  server::EngineStats Stats() const override;

  // Waits up to ten seconds for the i-th submitted request (from 0).
  server::GenerationRequest WaitForRequest(size_t i);
  // Sends an event of the i-th submitted request.
  void Emit(size_t i, server::GenerationEvent event);
  // Sends the tokens of `text` in one event.
  void EmitText(size_t i, std::string_view text, int32_t branch = 0);
  void EmitEnd(size_t i, server::FinishReason reason, int32_t branch = 0);

  bool WaitForCancel(size_t i);  // up to ten seconds
  bool WaitForCancelBranch(size_t i, int32_t branch);
  bool IsPaused(size_t i) const;
  size_t num_pauses() const;  // of all requests so far
  size_t num_submitted() const;
  size_t num_dropped_contexts() const;

  // How long a step takes from now on; at first it takes no time.
  void SetStepTime(std::chrono::microseconds time);
  void FailSubmits(absl::Status status);
  void SetStats(const server::EngineStats& stats);

 private:
  struct Sequence {
    std::string reply;
    size_t next = 0;
    int32_t drawn = 0;
    bool done = false;
  };
  struct Request {
    server::GenerationRequest request;
    server::EventSink sink;
    std::vector<Sequence> sequences;
  };

  void Loop();
  void Step(Request* request);
  server::GenerationEvent NextEvent(const server::GenerationRequest& request, int32_t branch,
                                    Sequence* sequence);
  template <typename Predicate>
  bool WaitFor(std::unique_lock<std::mutex>* lock, Predicate predicate);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Reply reply_;
  std::vector<server::RequestId> order_;
  std::map<server::RequestId, Request> live_;
  std::vector<server::GenerationRequest> submitted_;
  std::set<server::RequestId> cancelled_;
  std::set<std::pair<server::RequestId, int32_t>> cancelled_branches_;
  std::set<server::RequestId> paused_;
  size_t num_pauses_ = 0;
  std::set<scheduler::ContextId> dropped_contexts_;
  absl::Status submit_status_;
  server::EngineStats stats_;
  uint64_t next_id_ = 1;
  std::chrono::microseconds step_time_{0};
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle::test
