// The ranks of one group over NCCL, in the place of the host (host_relay.h): NCCL moves bytes from
// device to device on the step's stream, and our kernels add them, so that bits are those of every
// other way.
//
// Ranks that share layers have one communicator, on lane 0. Stages have one for each pair and
// direction that passes rows: the receiver's waits on lane 0, the sender's on a stream beside it,
// so that a sender never waits for a receiver. Rows that are sent stay as they are until they are
// received (Ops::SendRows).
//
// A thread of its own looks at all this: it aborts NCCL's communicators when the group is given up,
// and the group when NCCL has an error or when the device has not come to an op within the limit;
// and it reports to the group's communicator which ops have begun, and whether the last one waits.
// Thread-safety: one thread enqueues; GiveUp and the group's Abort from any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/cuda/ranks/nccl_library.h"
#include "kernels/cuda/ranks/nccl_link.h"
#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/cuda/ranks/stream_marks.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/host_meetings.h"

namespace heddle::kernels::cuda {

class NcclGroup {
 public:
  struct Options {
    std::chrono::milliseconds limit;          // for a device that does not come
    std::chrono::milliseconds connect_limit;  // for each link
    const char* noun = "rank";                // what messages call a member
    bool shares_layers = true;                // false: stages
    MeetingSizes sizes;                // for stages: which pairs pass rows; none: each to its next
    std::shared_ptr<NcclLinks> links;  // the same for all groups of a device
  };
  // Blocks until all ranks have come, and something has passed over all links: NCCL connects ranks
  // when they first send. Else an error, at the latest after the limit on each link; others may
  // have succeeded.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Join(Runtime& runtime, const NcclApi& api,
                                                         std::shared_ptr<Communicator> communicator,
                                                         const Options& options);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Enqueue on lane 0, for ranks that share layers; as NcclLink's.
  absl::Status AllGather(const void* part, void* whole, int64_t bytes);
  absl::Status Exchange(std::span<const NcclPiece> sent, std::span<const NcclPiece> received);
  // For stages.
  absl::Status Send(int32_t to, void* rows, int64_t bytes);
  absl::Status Receive(int32_t from, void* rows, int64_t bytes);

  // All that waits on the device for ops of any group over NCCL ends.
  void GiveUp();
  // It is going to be given up, and aborts no communicator from now on.
  void StopWatching() { is_given_up_ = true; }
  // NCCL's error, if it has one. Behind GiveUp of any group of the device: that.
  absl::Status Check() { return LookAtLinks(); }

 private:
  using Clock = std::chrono::steady_clock;

  // An op on lane 0 from its being enqueued to its end.
  struct Op {
    uint64_t number = 0;  // from 1 on
    std::unique_ptr<StreamMark> begun, ended;
    Clock::time_point since;  // it is the oldest one
  };
  // Rows from a stage to another one.
  struct Edge {
    std::unique_ptr<NcclLink> link;    // null: they pass none
    std::unique_ptr<SideStream> side;  // of a sender
    std::unique_ptr<StreamMark> ready;
  };

  NcclGroup(Runtime& runtime, const NcclApi& api, std::shared_ptr<Communicator> communicator,
            const Options& options)
      : runtime_(runtime), api_(api), communicator_(std::move(communicator)), options_(options) {}
  absl::Status ConnectRanks();
  absl::Status ConnectStages();
  absl::Status ConnectPair(const NcclId& id, int32_t from, int32_t to);
  NcclLink::Place PlaceOf(int32_t rank, int32_t world, int32_t most_blocks) const;
  std::vector<uint8_t> Targets() const;
  absl::Status Try(NcclLink& link,
                   const std::function<absl::Status(uint8_t* place, void* stream)>& call);
  absl::Status Do(const std::function<absl::Status(void* stream)>& call);
  absl::Status OrAbort(absl::Status status);
  absl::StatusOr<Op> NewOp();
  void Watch();
  void SetWaits(bool waits);
  absl::Status LookAtOps();
  absl::Status LookAtLinks();

  Runtime& runtime_;
  const NcclApi api_;
  const std::shared_ptr<Communicator> communicator_;
  const Options options_;
  std::unique_ptr<NcclLink> ranks_;
  std::vector<Edge> to_, from_;  // [stages]
  uint64_t n_ops_ = 0;           // enqueued
  std::mutex mutex_;
  std::deque<Op> ops_;      // GUARDED_BY(mutex_): those that have not ended when last looked at
  std::vector<Op> unused_;  // GUARDED_BY(mutex_)
  uint64_t n_begun_ = 0;    // as reported; the watch's
  bool waits_ = false;      // likewise
  bool has_ops_ = false;    // likewise: some were under way at the last look
  std::atomic<bool> is_given_up_{false};
  std::atomic<bool> is_stopping_{false};
  std::thread watch_;
};

}  // namespace heddle::kernels::cuda
