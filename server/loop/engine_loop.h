// The one thread that owns the scheduler and the executor: takes in requests and cancellations,
// plans a step, has it executed, books the result, and hands every token to its request's sink.
//
// Life of a round: take the mailbox in whole → Plan → Submit → sinks, with what the step before
// brought → Wait → Commit. So the executor stands still only for Commit and Plan, if it runs a step
// by itself (engine/threaded_executor.h); docs/decisions/0015 says why the plan waits for the
// tokens. Where the executor takes two plans, the one behind is made and submitted before Wait, and
// the next round finds it in flight: then it does not stand still at all (docs/decisions/0022).
// With nothing to do the thread sleeps until something is posted.
//
// Threads: Submit, Cancel, CancelBranch, Stats, NextId, Drain and FailIfStuck from any thread. They
// share with the loop only the mailbox, under a mutex that is held for moments and never during a
// step, a sink or a log line. What is the loop's own it hands over for as long as the executor has
// its thread, so that FailIfStuck can end what waits for a step that never does.
//
// Ends: Drain is the orderly one. The destructor cancels what is left. If the executor fails,
// every request ends with kError, and the loop refuses new ones as UNAVAILABLE for good.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/executor.h"
#include "engine/step.h"
#include "scheduler/scheduler.h"
#include "server/generation.h"
#include "server/loop/request_trace.h"

namespace heddle::server {

struct EngineLoopOptions {
  // The queue: requests that wait for their first step, tokens of their prompts (0: no limit; one
  // request is always taken), and how long one may wait (0: for ever).
  int32_t max_queue = 256;
  int64_t max_queue_tokens = 0;
  int64_t max_queue_us = 0;
  // With policy fair no tenant may have more than this many times what is free of the queue: so one
  // alone gets four fifths of it, and there is always room for another (dynamic thresholds,
  // Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
  static constexpr int32_t kShareOfFreeQueue = 4;
  int32_t max_step_tokens = 0;  // rows per step; 0: what the executor takes
  // Prompts take only so much of a step that running streams get a token this often; 0: no limit.
  int64_t target_inter_token_us = scheduler::kAutomaticTarget;
  bool prefix_cache = true;
  scheduler::PolicyKind policy = scheduler::PolicyKind::kFcfs;
  int64_t starvation_us = 60'000'000;  // who waits longer goes first, whatever the policy
  bool plan_ahead = true;              // of the tokens, if the executor takes two plans
};

// What the loop's scheduler is made with; also for planning without a loop.
scheduler::SchedulerOptions SchedulerOptionsFor(const engine::ExecutorLimits& limits,
                                                const EngineLoopOptions& options);

class EngineLoop final : public GenerationService {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the thread. Aborts if the executor's limits are not positive.
  EngineLoop(std::unique_ptr<engine::Executor> executor, const EngineLoopOptions& options);

  // Cancels what runs and waits for the step in flight; for ever, if that IsStuck.
  ~EngineLoop() override;

  RequestId NextId() override;
  absl::Status Submit(GenerationRequest request, EventSink sink) override;
  void Cancel(RequestId id) override;
  void CancelBranch(RequestId id, int32_t branch) override;
  EngineStats Stats() const override;
  // What the executor failed with; OK unless the state is kFailed. From any thread.
  absl::Status Failure() const;
  std::vector<RequestHistory> Histories() const override { return trace_.Histories(NowUs()); }
  std::optional<RequestHistory> History(std::string_view name) const override {
    return trace_.History(name, NowUs());
  }

  // Refuses new requests from now on, waits until all others have finished, and cancels those that
  // have not at `deadline`. Returns whether all finished by themselves. Blocks; not from a sink.
  bool Drain(Clock::time_point deadline);

  // Fails the engine if the executor has had a step for longer than `limit`, as a lost device does:
  // every request ends with kError, told by the calling thread. Returns whether it did.
  bool FailIfStuck(std::chrono::duration<double> limit);
  // Whether FailIfStuck ever did. Nobody knows what the step still writes to: leave the process
  // without destroying the loop or what the executor uses.
  bool IsStuck() const {
    std::lock_guard lock(mutex_);
    return stuck_;
  }

 private:
  struct Submission {
    GenerationRequest request;
    EventSink sink;
    int64_t arrival_us;
  };
  struct Cancellation {
    RequestId id;
    int32_t branch;  // -1: all
  };
  // What other threads leave for the loop.
  struct Mailbox {
    std::vector<Submission> submissions;
    std::vector<Cancellation> cancellations;
    bool cancel_all = false;
    bool empty() const { return submissions.empty() && cancellations.empty() && !cancel_all; }
    void Clear();
  };
  struct Client {
    EventSink sink;
    int32_t open_branches;
    uint64_t tenant;
    bool waits = true;  // nothing has come of it yet
  };
  // A plan, from when it is made until its result is committed.
  struct Flight {
    engine::StepPlan plan;
    std::vector<scheduler::StepNote> notes;
    int64_t planned_us = 0;
    int64_t waited_us = -1;  // from the end of the step before to Submit; -1: there was none
  };

  void Run();
  bool TakeMail();
  void TakeIn(Mailbox* mail);
  absl::Status CheckShare(uint64_t tenant, size_t waiting) const;
  void StopWaiting(Client* client);
  absl::Status CheckRoom(const GenerationRequest& request) const;
  void Expire();
  void RunStep();
  absl::Status BeginStep();
  absl::Status BeginStepAhead();
  absl::Status Launch();
  template <typename Call>
  absl::Status Lend(Call&& call);
  Flight& NextFlight() { return flights_[(oldest_flight_ + num_flights_) % flights_.size()]; }
  void Tell();
  void FinishStep();
  void CountStep(Flight* flight, int64_t end_us);
  void Fail(absl::Status error);
  void FailAll();
  void Emit();
  void Deliver(const scheduler::SequenceEvent& event);
  absl::Status ErrorOfEnd() const;
  void Publish();
  void CheckWhenIdle() const;
  static int64_t NowUs();

  const std::unique_ptr<engine::Executor> executor_;
  const scheduler::SchedulerOptions scheduler_options_;
  const EngineLoopOptions options_;
  RequestTrace trace_;

  // Held by the loop's thread for whatever it does but to wait, for mail or for the executor.
  std::mutex own_;
  // The loop's own, GUARDED_BY(own_).
  scheduler::Scheduler scheduler_;
  absl::flat_hash_map<RequestId, Client> clients_;
  std::array<Flight, 2> flights_;  // num_flights_ from oldest_flight_ on, in a ring
  size_t oldest_flight_ = 0;
  size_t num_flights_ = 0;
  engine::StepResult result_;                     // of the step that was committed last
  std::vector<scheduler::SequenceEvent> events_;  // to be delivered, in order
  std::vector<scheduler::StepNote> notes_;        // of the last step, to be traced
  int64_t noted_begin_us_ = 0;
  int64_t step_done_us_ = 0;  // when the last step ended; 0: there was nothing to do since
  Mailbox taken_;
  EngineStats stats_;
  absl::Status expired_;   // what the sinks of requests that waited for too long are told
  bool has_work_ = false;  // a step was in flight, so that there may be another

  mutable std::mutex mutex_;
  std::condition_variable posted_;   // to the loop: mail, or stop
  std::condition_variable drained_;  // to Drain: idle, or failed
  // GUARDED_BY(mutex_), all of the following.
  Mailbox mail_;
  EngineStats published_;
  size_t posted_tokens_ = 0;                                  // of the prompts in mail_
  absl::flat_hash_map<uint64_t, int32_t> waiting_of_tenant_;  // with policy fair only
  EngineState state_ = EngineState::kServing;
  absl::Status failure_;  // written under own_, too: either is enough to read it
  bool stuck_ = false;
  bool stop_ = false;
  bool idle_ = true;

  std::atomic<uint64_t> last_id_{0};
  // When the last step ended, or work came to a loop without any: guarded by mutex_, but for
  // last_step_us_, which is the loop's own.
  int64_t progress_us_ = 0;
  int64_t last_step_us_ = 0;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace heddle::server
