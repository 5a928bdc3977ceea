// The one thread that owns the scheduler and the executor: takes in requests and cancellations,
// plans a step, has it executed, books the result, and hands every token to its request's sink.
//
// Life of a round: take the whole mailbox → Plan → Submit → deliver to sinks what the previous step
// brought → Wait → Commit. So an executor that runs a step by itself (engine/threaded_executor.h)
// stands still only during Commit and Plan; docs/decisions/0015 says why the plan waits for the
// tokens. If the executor takes several plans, those behind are made and submitted before Wait, and
// the next round finds them in flight: then it never stands still (docs/decisions/0022).
// With nothing to do the thread sleeps until something is posted.
//
// Threads: all of GenerationService, Drain and FailIfStuck may be called from any thread, Beat from
// one. They share only the mailbox with the loop, under a mutex that is held
// for moments and never during a step, a sink or a log line. While the executor has the loop's
// thread, the loop hands over its own state, so that FailIfStuck can end what waits for a step that
// never ends.
//
// Ends: Drain is the orderly one. The destructor cancels what is left. If the executor fails for
// good, every request ends with kError, and the loop refuses new ones as UNAVAILABLE from then on.
// If it may come back (Executor::Abandon), requests keep their tokens and wait; they are computed
// again from these, and meanwhile new ones are refused as UNAVAILABLE (docs/decisions/0083).
#pragma once

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
#include "base/in_flight.h"
#include "engine/executor.h"
#include "engine/step.h"
#include "scheduler/scheduler.h"
#include "server/generation.h"
#include "server/loop/engine_loop_options.h"
#include "server/loop/mailbox.h"
#include "server/loop/pauses.h"
#include "server/loop/queue_room.h"
#include "server/loop/request_histories.h"
#include "server/loop/speculation.h"

namespace heddle::server {

class EngineLoop final : public GenerationService {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the thread. Aborts if the executor's limits are not positive. `speculation`: null makes
  // one from the options.
  EngineLoop(std::unique_ptr<engine::Executor> executor, const EngineLoopOptions& options,
             std::unique_ptr<Speculation> speculation = nullptr);

  // Cancels what runs and waits for the step in flight, without end if it IsStuck.
  ~EngineLoop() override;

  RequestId NextId() override;
  absl::Status Submit(GenerationRequest request, EventSink sink) override;
  void Cancel(RequestId id) override;
  void CancelBranch(RequestId id, int32_t branch) override;
  void Pause(RequestId id) override;
  void Resume(RequestId id) override;
  void ForkContext(scheduler::ContextId from, int32_t num_tokens, scheduler::ContextId to) override;
  void JoinContexts(scheduler::ContextJoin join) override;
  void DropContext(scheduler::ContextId id) override;
  EngineStats Stats() const override;
  // Has the loop look at the executor's status, also if there is nothing to run.
  void CheckExecutor();
  // The executor's error; OK unless the state is kFailed. May be called from any thread.
  absl::Status Failure() const;
  std::vector<RequestHistory> Histories() const override { return histories_.Histories(NowUs()); }
  std::optional<RequestHistory> History(std::string_view name) const override {
    return histories_.History(name, NowUs());
  }

  // Refuses new requests from now on, waits until all others have finished, and cancels those that
  // have not at `deadline`. Returns whether all finished by themselves. Blocks; not from a sink.
  bool Drain(Clock::time_point deadline);

  // Called several times a second by a watching thread, so that time in which the process was
  // stopped does not count as time without progress. Without calls all time counts.
  void Beat() { pauses_.Beat(NowUs()); }

  // Fails the engine if the executor has had a step for longer than `limit`, as with a lost device:
  // every request ends with kError, reported on the calling thread. Returns whether it did.
  bool FailIfStuck(std::chrono::duration<double> limit);
  // Whether FailIfStuck ever did. The unfinished step may still write to memory: leave the process
  // without destroying the loop or what the executor uses.
  bool IsStuck() const {
    std::lock_guard lock(mutex_);
    return stuck_;
  }

 private:
  struct Client {
    EventSink sink;
    int32_t open_branches;
    uint64_t number;     // ClientOf its request
    int32_t bans_until;  // BansUntil of its request
    bool waits = true;   // has had no event yet
  };
  // A step, from its plan until its result is committed.
  struct Flight {
    engine::StepPlan plan;
    engine::StepLocals locals;
    std::vector<scheduler::StepNote> notes;
    int64_t planned_us = 0;
    int64_t waited_us = -1;  // from the end of the step before to Submit; -1: none before
  };

  void Run();
  bool TakeMail();
  void TakeIn(Mailbox* mail);
  void Drop(Submission* submission);
  void StopWaiting(Client* client);
  void EndIdleTime();
  void Post(ContextOrder order);
  absl::Status CheckRoom(const GenerationRequest& request) const;
  void Expire();
  void RunStep();
  absl::Status BeginStep();
  void Draft();
  void TellDrafters();
  absl::Status BeginStepsAhead();
  absl::Status Launch();
  template <typename Call>
  absl::Status Lend(Call&& call);
  void Tell();
  void FinishStep();
  double StepUs(const Flight& flight, int64_t end_us) const;
  void CountStep(Flight* flight, int64_t end_us);
  void Fail(absl::Status error);
  void FailForGood(absl::Status error);
  bool BeginRecovery(const absl::Status& error);
  void Recover();
  void SetRecovering(bool recovers, const std::string& why);
  void FailAll();
  void Emit();
  void Deliver(const scheduler::SequenceEvent& event);
  // The cached tokens that clients are told of, in whole pages: an exact count would let a client
  // find out by trial what another has asked.
  int32_t WholePages(int32_t tokens) const {
    return tokens - tokens % scheduler_options_.page_tokens;
  }
  absl::Status ErrorOfEnd(const scheduler::SequenceEvent& event, const Client& client) const;
  void Publish();
  void ListAdapters();
  void CheckWhenIdle() const;
  static int64_t NowUs();
  static double Seconds(int64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

  const std::unique_ptr<engine::Executor> executor_;
  const scheduler::SchedulerOptions scheduler_options_;
  const EngineLoopOptions options_;
  RequestHistories histories_;

  // Held by the loop's thread except while it waits for mail or for the executor.
  std::mutex own_;
  // The loop's own state, GUARDED_BY(own_).
  scheduler::Scheduler scheduler_;
  absl::flat_hash_map<RequestId, Client> clients_;
  base::InFlight<Flight> flights_;
  std::unique_ptr<Speculation> speculation_;      // null: nothing is drafted
  engine::StepResult result_;                     // of the step that was committed last
  std::vector<scheduler::SequenceEvent> events_;  // to be delivered, in order
  size_t told_events_ = 0;                        // of these, those that the drafters know
  std::vector<scheduler::StepNote> notes_;        // of the last step, to be traced
  int64_t noted_begin_us_ = 0;
  int64_t listed_us_ = 0;     // when the adapters were listed last
  int64_t step_done_us_ = 0;  // when the last step ended; 0: idle since
  Mailbox taken_;
  EngineStats stats_;
  absl::Status expired_;  // what sinks of requests that waited too long are told
  bool is_recovering_ = false;
  bool has_work_ = false;      // a step was in flight, so that there may be another
  bool has_requests_ = false;  // without work they are paused

  mutable std::mutex mutex_;
  std::condition_variable posted_;   // to the loop: mail, or stop
  std::condition_variable drained_;  // to Drain: idle, or failed
  // All of the following are GUARDED_BY(mutex_).
  Mailbox mail_;
  EngineStats published_;
  size_t posted_tokens_ = 0;  // of the prompts in mail_
  QueueRoom room_;
  EngineState state_ = EngineState::kServing;
  absl::Status failure_;   // written under own_, too: either is enough to read it
  bool recovers_ = false;  // is_recovering_, for others
  bool stuck_ = false;
  bool stop_ = false;
  bool idle_ = true;

  std::atomic<uint64_t> last_id_{0};
  // When the last step ended, or when an idle loop got work. GUARDED_BY(mutex_), except
  // last_step_us_ and paused_before_step_end_us_, which belong to the loop.
  int64_t progress_us_ = 0;
  int64_t paused_before_us_ = 0;  // pauses before progress_us_
  int64_t last_step_us_ = 0;
  int64_t paused_before_step_end_us_ = 0;  // pauses before last_step_us_
  Pauses pauses_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace heddle::server
