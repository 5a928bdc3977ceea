// A device's place among others that it shares a model with: its mailbox, where those of the others
// are, and what its kernels say when they give up (peer_params.h).
//
// Devices of one process read each other's memory; each is used by a thread of its own. Where the
// communicator shares no memory, NCCL brings what others have (nccl_group.h), or this process
// answers for them (host_relay.h): all ranks of a group choose alike, by what each says of itself.
// Life: Join on all ranks at the same time; GiveUp, if a step may be in flight; the group ends with
// its device, or when that joins another one. Thread-safety: none, except that Communicator::Abort
// may come from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/ranks/host_relay.h"
#include "kernels/cuda/ranks/nccl_group.h"
#include "kernels/cuda/ranks/nccl_library.h"
#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/dtype.h"
#include "kernels/host_meetings.h"
#include "kernels/nano_batch.h"

namespace heddle::kernels::cuda {

// Lets kernels of the calling thread's device read and write the memory of `other`, which the
// machine says that they can (CanReach). FAILED_PRECONDITION if it fails all the same.
absl::Status OpenPeer(const DeviceInfo& own, const DeviceInfo& other);
// The text of that error; `why` is the driver's, if it has one.
absl::Status NoPeerAccess(const DeviceInfo& own, const DeviceInfo& other, std::string_view why);

class PeerGroup {
 public:
  struct Options {
    // How long kernels wait for those of other devices of this process
    // (CudaDeviceOptions::rank_wait_ms); for others they wait until the communicator is aborted, as
    // it is when this device does not come to an op for so long.
    int64_t wait_ms = 0;
    DType activations = DType::kBF16;
    // Members make some products alike (a router's), so that their GPUs have to be equal. False:
    // they are stages, and those of other processes may have others.
    bool shares_layers = true;
    // Which steps the device divides: ranks of one process that share layers have to have the same
    // rules. nullptr: none. It outlives Join.
    const NanoBatchProfile* nano_batches = nullptr;
    std::shared_ptr<NcclLinks> links;  // the same for all groups of a device
    // For a communicator that shares no memory, what carries.
    RankNetwork network = RankNetwork::kHost;
    // The relay that is used if the host does; the same for all groups of a device.
    std::function<std::shared_ptr<HostRelay>()> relay;
    // The memory that it takes, and finds.
    MeetingSizes sizes;
    std::function<int64_t()> host_free_bytes;
  };
  // Blocks until all ranks have come, or the group is aborted. INVALID_ARGUMENT for more than
  // kMaxPeers ranks, for GPUs of different kinds, other activations or rules; FAILED_PRECONDITION
  // as OpenPeer, or if NCCL is asked for and missing; RESOURCE_EXHAUSTED without page-locked
  // memory, as HostMeetings::SetRoom says; UNAVAILABLE for what NCCL says.
  static absl::StatusOr<std::unique_ptr<PeerGroup>> Join(Runtime& runtime,
                                                         std::shared_ptr<Communicator> communicator,
                                                         const Options& options);
  ~PeerGroup();
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  const Peers& peers() const { return peers_; }
  // The relay where the host carries: an op across ranks needs HostPeers::Meet before its kernel.
  HostPeers* host() const { return host_.get(); }
  // The carrier in the place of kernels and of the host: for stages all, and for ranks that share
  // layers, which have both, the ops of steps of many rows. Both null: kernels read others' parts.
  NcclGroup* nccl() const { return nccl_.get(); }
  // The carrier, for a log: "NCCL 2.28.9", "the host", or "" for kernels; and why it is not NCCL,
  // or "" if the host was asked for.
  const std::string& carrier() const { return carrier_; }
  const std::string& why_not_nccl() const { return why_not_nccl_; }
  // The next message between stages.
  absl::StatusOr<StageRowsParams> Sent(int32_t to, void* rows, int64_t bytes);
  absl::StatusOr<StageRowsParams> Received(int32_t from, void* rows, int64_t bytes);
  // Kernels of ours that wait for others end soon; and with GiveUp, those of NCCL, of all groups of
  // the device.
  void EndKernels();
  void GiveUp();
  // Behind a step: OK if its ops have met those of all ranks. Else the first reason, as the group
  // knows it or as this rank's kernels have noted it: then the group is aborted.
  absl::Status Check();

 private:
  // The mailboxes of a group in one process. Kernels of others may write letters into a rank's
  // until those have left, too: who leaves first leaves its mailbox to the last one.
  struct Boxes {
    std::mutex mutex;
    int32_t members = 0;         // GUARDED_BY(mutex), as the next one
    std::vector<Mailbox*> left;  // by ranks that are gone
  };
  // The word that kernels look at, while there is one.
  struct Watch {
    std::mutex mutex;
    PeerNote* note = nullptr;  // GUARDED_BY(mutex)
  };

  PeerGroup(Runtime& runtime, std::shared_ptr<Communicator> communicator, const Options& options)
      : runtime_(runtime), communicator_(std::move(communicator)), options_(options) {}
  StageRowsParams Message(int32_t other, uint32_t number, void* rows, int64_t bytes) const;
  absl::Status Allocate();
  absl::Status Meet();
  absl::Status MeetOthers();
  absl::Status UseHost();
  absl::StatusOr<std::string> Connect(const NcclApi& api);
  absl::Status AllocateMailbox();
  void LeaveMailbox();
  const char* noun() const { return options_.shares_layers ? "rank" : "stage"; }

  Runtime& runtime_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  const Options options_;
  Peers peers_;
  std::shared_ptr<Boxes> boxes_;  // null: not in a group of this process
  std::unique_ptr<HostPeers> host_;
  std::unique_ptr<NcclGroup> nccl_;
  std::string carrier_, why_not_nccl_;
  uint32_t sent_[kMaxPeers] = {};  // messages to each stage, and from each
  uint32_t received_[kMaxPeers] = {};
};

}  // namespace heddle::kernels::cuda
