// The ranks of a group beside the head, each on a thread of its own: they run every step of the
// head at the same time.
//
// Between steps the threads spin for some tens of microseconds and then sleep.
// Thread-safety: Begin and Join alternate, from one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/rank_worker.h"
#include "kernels/communicator.h"

namespace heddle::engine {

class RankThreads {
 public:
  // `communicator` is the head's. `cpus` [ranks] are the processors of each rank, the head's first;
  // empty: all.
  RankThreads(std::vector<std::unique_ptr<RankWorker>> workers,
              std::shared_ptr<kernels::Communicator> communicator,
              std::vector<std::vector<int>> cpus);
  // REQUIRES: no step has begun without being joined.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // The other ranks begin a step; `plan` stays unchanged until Join. `adapters`:
  // StepLocals::adapters, which are kept until then.
  void Begin(const StepPlan& plan, RankWorker::Adapters adapters);
  // Waits for the other ranks; `head` is how the step went there. If it failed on any rank, no rank
  // waits for another any more, and the error, the first one, stays.
  absl::Status Join(const absl::Status& head);

  int32_t world() const { return static_cast<int32_t>(workers_.size()) + 1; }

 private:
  void Work(size_t worker);
  std::span<const int> CpusOf(size_t rank) const;

  const std::vector<std::unique_ptr<RankWorker>> workers_;
  const std::shared_ptr<kernels::Communicator> communicator_;
  const std::vector<std::vector<int>> cpus_;
  std::thread::id bound_;           // the head's thread that is on the head's processors
  const StepPlan* plan_ = nullptr;  // read by the threads once begun_ has changed
  std::vector<std::shared_ptr<const AdapterImage>> adapters_;  // likewise
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> begun_{0};  // steps
  alignas(64) std::atomic<uint32_t> done_{0};   // ranks that are done with this step
  std::vector<std::thread> threads_;            // last: they use everything above
};

}  // namespace heddle::engine
