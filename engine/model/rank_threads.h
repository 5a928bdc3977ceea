// The ranks of a group beside the head, each on a thread of its own: they run every step of the
// head at the same time, or, behind stage 0 of a pipeline, when its rows arrive.
//
// Between steps the threads spin for some tens of microseconds and then sleep. Thread-safety: none;
// one thread at a time calls the functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/in_flight.h"
#include "engine/model/other_ranks.h"
#include "engine/model/rank_worker.h"
#include "kernels/communicator.h"

namespace heddle::engine {

class RankThreads final : public OtherRanks {
 public:
  // `groups`: a communicator of each group that ranks meet in; not empty. `cpus` [ranks] are the
  // processors of each rank, the head's first; empty: all. At most `max_steps` steps are begun and
  // not joined.
  RankThreads(std::vector<std::unique_ptr<RankWorker>> workers,
              std::vector<std::shared_ptr<kernels::Communicator>> groups,
              std::vector<std::vector<int>> cpus, int32_t max_steps);
  // REQUIRES: all steps that have begun are joined, or one has failed.
  ~RankThreads() override;
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  void Begin(const StepPlan& plan, Adapters adapters) override;
  void BeginLogits() override;
  absl::Status Join(const absl::Status& head) override;
  absl::Status Fail(const absl::Status& why) override;
  int32_t world() const override { return static_cast<int32_t>(workers_.size()) + 1; }
  absl::Status status() const override { return groups_.front()->status(); }

 private:
  struct Job {
    const StepPlan* plan = nullptr;
    Adapters adapters;  // of the step
    bool is_logits = false;
  };
  struct Step {
    const StepPlan* plan = nullptr;
    std::vector<std::shared_ptr<const AdapterImage>> adapters;
    uint32_t layers_end = 0;  // jobs up to this half's, itself included
    uint32_t logits_end = 0;
  };
  struct alignas(64) Done {
    std::atomic<uint32_t> jobs{0};
  };

  void Work(size_t worker);
  uint32_t Post(const Job& next);
  void WaitFor(size_t worker, uint32_t jobs);
  void Abort(const absl::Status& why);
  std::span<const int> CpusOf(size_t rank) const;

  const std::vector<std::unique_ptr<RankWorker>> workers_;
  const std::vector<std::shared_ptr<kernels::Communicator>> groups_;
  const std::vector<std::vector<int>> cpus_;
  std::thread::id bound_;       // the head's thread that is on the head's processors
  base::InFlight<Step> steps_;  // begun and not joined
  std::vector<Job> jobs_;       // a ring: job i is at i % size, a power of two; read up to begun_
  alignas(64) std::atomic<uint32_t> begun_{0};  // jobs
  std::vector<Done> done_;                      // [workers]
  std::vector<std::thread> threads_;            // last: they use everything above
};

}  // namespace heddle::engine
