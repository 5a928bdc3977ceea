// One communicator of NCCL: some ranks, one after the other in a fixed order of ops.
//
// It never blocks inside NCCL: calls that NCCL goes on with by itself are looked at until they are
// done, and NcclLinks::Abort ends all of it, kernels that wait included. Ops of a link that was
// aborted, or whose Place::check fails, do nothing and return OK: whoever gives up a group says
// why.
//
// A rank that is gone is no error for some seconds: whoever watches the ranks knows which one
// it was, and ends the group with its name.
// Thread-safety: one thread calls ops; NcclLinks::Abort and Look from any thread. The calling
// thread's device is the communicator's (Runtime::Bind).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/ranks/nccl_library.h"

namespace heddle::kernels::cuda {

// Bytes to or from a rank. None: the pair exchanges nothing.
struct NcclPiece {
  int32_t rank = 0;
  void* data = nullptr;  // of the device; not changed if it is sent
  int64_t bytes = 0;
};

class NcclLink;

// All communicators of a device, which are aborted together: NCCL's abort waits for all work of the
// device, and with it for kernels of communicators that are not aborted yet.
// Thread-safety: any thread calls anything.
class NcclLinks {
 public:
  void Add(NcclLink* link);
  void Remove(NcclLink* link);
  void Abort();

  // Groups whose oldest op waits for other ranks: what is enqueued behind it comes later, and no
  // GPU hangs.
  bool any_waits() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  void AddWaiting(int32_t more) { waiting_.fetch_add(more, std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::vector<NcclLink*> links_;  // GUARDED_BY(mutex_)
  std::atomic<int32_t> waiting_{0};
};

class NcclLink {
 public:
  struct Place {
    int32_t rank = 0;
    int32_t world = 1;
    // Blocks of NCCL's kernels at most. Each takes buffers on the device, too.
    int32_t most_blocks = 1;
    // An error ends the wait for the others.
    std::function<absl::Status()> check;
    std::chrono::milliseconds limit;
    std::shared_ptr<NcclLinks> links;  // of the device
  };
  // Blocks until all ranks with that id have come, or place.check() says why they will not;
  // UNAVAILABLE after the limit, and for NCCL's errors.
  static absl::StatusOr<std::unique_ptr<NcclLink>> Connect(const NcclApi& api, const NcclId& id,
                                                           Place place);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // Enqueued on `stream`. All ranks call the same ops in the same order. `part`, `bytes` of it,
  // goes to `whole` + rank * bytes on all of them.
  absl::Status AllGather(const void* part, void* whole, int64_t bytes, void* stream);
  // All pieces at once; what a rank sends to another one, that one receives in its same call.
  absl::Status Exchange(std::span<const NcclPiece> sent, std::span<const NcclPiece> received,
                        void* stream);

  // Aborts this one alone: nothing else of the device may be waiting for other ranks.
  void Abort();
  absl::Status Look();  // the communicator's error, if it has one

 private:
  friend class NcclLinks;

  NcclLink(const NcclApi& api, Place place);
  NcclComm* Take();
  absl::Status Call(const char* name, const std::function<NcclResult(NcclComm*)>& call);
  absl::Status Settle(const char* name);
  NcclResult State();

  const NcclApi api_;
  const Place place_;
  std::mutex mutex_;
  NcclComm* comm_ = nullptr;  // GUARDED_BY(mutex_), as the next one; null: aborted
  std::optional<std::chrono::steady_clock::time_point> gone_since_;  // another rank
};

}  // namespace heddle::kernels::cuda
