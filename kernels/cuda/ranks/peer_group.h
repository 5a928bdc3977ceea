// A device's place among others that it shares a model with: its mailbox, where those of the others
// are, and what its kernels say when they give up (peer_params.h).
//
// All devices are in one process and read each other's memory; each is used by a thread of its own.
// Life: Join on all ranks at the same time; the group ends with its device, when no rank has a step
// in flight. Thread-safety: none, except that Communicator::Abort may come from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/cuda/runtime/runtime.h"

namespace heddle::kernels::cuda {

// Lets kernels of the calling thread's device read and write the memory of `other`.
// FAILED_PRECONDITION if the machine cannot: the message says what could be done.
absl::Status OpenPeer(const DeviceInfo& own, const DeviceInfo& other);
// The text of that error; `why` is the driver's, if it has one.
absl::Status NoPeerAccess(const DeviceInfo& own, const DeviceInfo& other, std::string_view why);

class PeerGroup {
 public:
  // Blocks until all ranks have come, or the group is aborted. INVALID_ARGUMENT for more than
  // kMaxPeers ranks or for GPUs of different kinds, FAILED_PRECONDITION as OpenPeer. `wait_ms`:
  // CudaDeviceOptions::rank_wait_ms. `noun`: what messages call a member, "rank" or "stage".
  static absl::StatusOr<std::unique_ptr<PeerGroup>> Join(Runtime& runtime,
                                                         std::shared_ptr<Communicator> communicator,
                                                         int64_t wait_ms, const char* noun);
  ~PeerGroup();
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  const Peers& peers() const { return peers_; }
  // The next message between stages.
  StageRowsParams Sent(int32_t to, void* rows, int64_t bytes) {
    return Message(to, sent_[to]++, rows, bytes);
  }
  StageRowsParams Received(int32_t from, void* rows, int64_t bytes) {
    return Message(from, received_[from]++, rows, bytes);
  }
  // Behind a step: OK if its ops have met those of all ranks. Else the first reason, as the group
  // knows it or as this rank's kernels have noted it: then the group is aborted.
  absl::Status Check();

 private:
  // The word that kernels look at, while there is one.
  struct Watch {
    std::mutex mutex;
    PeerNote* note = nullptr;  // GUARDED_BY(mutex)
  };

  PeerGroup(Runtime& runtime, std::shared_ptr<Communicator> communicator, const char* noun)
      : runtime_(runtime), communicator_(std::move(communicator)), noun_(noun) {}
  StageRowsParams Message(int32_t other, uint32_t number, void* rows, int64_t bytes) const;
  absl::Status Allocate(int64_t wait_ms);
  absl::Status Meet();

  Runtime& runtime_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  const char* const noun_;
  Peers peers_;
  uint32_t sent_[kMaxPeers] = {};  // messages to each stage, and from each
  uint32_t received_[kMaxPeers] = {};
};

}  // namespace heddle::kernels::cuda
