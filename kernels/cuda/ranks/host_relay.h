// Answers the kernels of a device in the place of ranks whose memory it cannot reach: ranks of
// other processes and machines. Rows pass through page-locked memory of the host, and from there
// over a communicator that sends.
//
// Kernels meet in mailboxes as ever (peer_params.h). Here the mailboxes of all ranks of a group are
// in page-locked memory: a kernel's letter to another rank is read by this process, whose thread
// calls the communicator with the part that it names, and then writes the letters of the others,
// with what has come. The thread has a job for each op that is enqueued, in the order of the
// stream, so that all communicators of a device are called by one thread. A job is there before its
// kernel is launched.
//
// All page-locked memory is taken when a group is made, for the sizes that its device was told
// (host_meetings.h); an op with more than that fails.
//
// Life: groups are added (Enter) and then meet; Stop, or the destructor, ends the thread, before
// the memory of any group is freed. When a communicator fails, the kernels of all groups give up.
// A device that does not come to an op for the limit of its group hangs: the thread aborts the
// communicator, with the rank's and the op's number. Each part travels with the word of its op and
// its length: ranks that do different ops are told so by their kernels, as in one process, and a
// part of another length aborts the communicator.
// Thread-safety: one thread enqueues and calls Stop; Communicator::Abort from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/host_meetings.h"

namespace heddle::kernels::cuda {

class HostRelay;

// The ranks of one group, with the mailboxes of all. Thread-safety: as HostRelay.
class HostPeers {
 public:
  // `limit`: how long the device may take to come to an op that was enqueued. `noun`: what messages
  // call a member.
  // `device_waits`: whether an op that others carry waits on the device for other ranks; empty:
  // there are none.
  HostPeers(Runtime& runtime, std::shared_ptr<Communicator> communicator,
            std::chrono::milliseconds limit, const char* noun,
            std::function<bool()> device_waits = {})
      : runtime_(runtime),
        communicator_(std::move(communicator)),
        limit_(limit),
        noun_(noun),
        device_waits_(std::move(device_waits)) {}
  ~HostPeers();
  HostPeers(const HostPeers&) = delete;
  HostPeers& operator=(const HostPeers&) = delete;

  // Fills the mailboxes of `peers`, whose rank, world and note are there already, takes the memory
  // for what passes, and joins. `free_bytes`: as HostMeetings::Room has it. RESOURCE_EXHAUSTED
  // without page-locked memory.
  absl::Status Create(Peers* peers, std::shared_ptr<HostRelay> relay, const MeetingSizes& sizes,
                      const std::function<int64_t()>& free_bytes);

  // The next op in which all ranks meet: a kernel of `blocks` blocks and so many meetings, in the
  // first of which rank r gives part_bytes[r] bytes, or none. `root`: the only rank that wants the
  // parts; -1: all do. Returns where the own part, if there is one, is to be copied before that
  // kernel. This and all that follow: RESOURCE_EXHAUSTED for more bytes than there is room for.
  struct Meeting {
    std::span<const int64_t> part_bytes;  // [world]
    bool has_part = true;                 // this rank
    int32_t root = -1;
    int32_t blocks = 1;
    int32_t meetings = 1;
  };
  //
  // Here and below: RESOURCE_EXHAUSTED if there is no page-locked memory. In a group that was given
  // up nothing fails here: kernels end, and the step's status says why. The memory is the device's
  // to write until the next op but one.
  absl::StatusOr<void*> Meet(const Meeting& meeting);
  // A sum that begins here, and ends in a later op (late_sums.h): its part is copied before the
  // kernel that begins it.
  absl::StatusOr<void*> Begin(const Meeting& meeting);
  absl::Status End(const Meeting& meeting);
  // The next message to or from a stage. Sent returns StageRowsParams::copy.
  absl::StatusOr<void*> Sent(int32_t to, uint32_t number, int64_t bytes);
  absl::Status Received(int32_t from, uint32_t number, int64_t bytes);

 private:
  friend class HostRelay;

  enum class Kind : uint8_t { kMeet, kBegin, kEnd, kSend, kRecv };
  struct Job {
    Kind kind = Kind::kMeet;
    void* own = nullptr;  // the part behind its header, or the message
    int64_t bytes = 0;    // of that without the header; 0: none
    // kMeet: of all ranks, at most; where those of others are put, nullptr: they are not wanted.
    int64_t part_bytes[kMaxPeers] = {};
    void* parts[kMaxPeers] = {};
    int32_t root = -1;
    int32_t blocks = 0;
    int32_t meetings = 0;
    // kSend, kRecv
    int32_t other = 0;
    uint32_t number = 0;
  };
  // The contents of a letter that is written in another rank's place.
  struct Answer {
    const void* part = nullptr;
    uint32_t what = 0;
  };
  using Answers = std::array<Answer, kMaxPeers>;
  // Page-locked memory.
  struct Place {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  absl::Status CheckRoom(const MeetingSizes& sizes,
                         const std::function<int64_t()>& free_bytes) const;
  absl::Status NoRoom(const MeetingSizes& sizes, std::string_view found) const;
  absl::Status Reserve(Place* place, int64_t bytes);
  absl::Status ReserveAll(const MeetingSizes& sizes);
  absl::StatusOr<void*> At(const Place& place, int64_t bytes) const;
  Job JobOf(Kind kind, const Meeting& meeting) const;
  absl::Status PlaceParts(const Place* places, Job* job) const;
  // On the relay's thread; false: it is given up.
  bool Perform(const Job& job);
  bool PerformMeeting(const Job& job);
  bool PerformBegin(const Job& job);
  bool PerformEnd(const Job& job);
  // Waits until is_there(); false: the group was given up, or the device hangs.
  template <typename IsThere>
  bool AwaitDevice(const IsThere& is_there);
  int64_t PutHeader(const Job& job, uint32_t what);
  bool TakeParts(const Job& job, uint32_t what, std::span<const void* const> parts,
                 Answers* answers);
  void WriteLetters(const Job& job, uint32_t what, const Answers& answers);
  bool is_given_up() const;
  bool PerformSend(const Job& job);
  bool PerformRecv(const Job& job);
  void GiveUp();

  Runtime& runtime_;
  const std::shared_ptr<Communicator> communicator_;
  const std::chrono::milliseconds limit_;
  const char* const noun_;
  const std::function<bool()> device_waits_;
  std::shared_ptr<HostRelay> relay_;
  Peers peers_;
  std::vector<void*> pinned_;  // all of it
  // An op is answered when the one before has been read, so that two places in turn suffice.
  Place own_parts_[2];
  Place parts_[2][kMaxPeers];
  uint32_t n_met_ = 0;  // ops enqueued
  // Sums that begin before they end: an own part is free when two later ones have ended.
  Place late_own_parts_[kLatePlaces];
  Place late_parts_[2][kMaxPeers];
  uint32_t n_begun_ = 0, n_ended_ = 0;  // enqueued
  Place sent_[kMaxPeers][2];
  Place received_[kMaxPeers][2];
  // Counts of what was answered; the relay's thread alone has these.
  uint64_t n_performed_ = 0;  // ops, with the present one
  uint32_t meetings_[kPeerBlocks] = {};
  uint32_t begun_ = 0;  // sums
  uint32_t ended_[kPeerBlocks] = {};
  uint32_t late_what_[kLatePlaces] = {};
};

class HostRelay {
 public:
  HostRelay();
  ~HostRelay();
  HostRelay(const HostRelay&) = delete;
  HostRelay& operator=(const HostRelay&) = delete;

  // The device's thread calls both. The group must outlive the relay, or Stop; its jobs are done in
  // the order in which they are added, those of all groups one at a time.
  void Enter(HostPeers* group);
  void Add(HostPeers* group, const HostPeers::Job& job);
  // Ends the thread: kernels that wait give up, and a call that has begun is aborted. Later jobs
  // are dropped.
  void Stop();
  bool is_stopping() const { return is_stopping_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    HostPeers* group = nullptr;
    HostPeers::Job job;
  };

  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> jobs_;          // GUARDED_BY(mutex_), as what follows
  std::vector<HostPeers*> groups_;  // all that have entered
  HostPeers* working_ = nullptr;    // whose job is being done
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;  // last: it uses everything above
};

}  // namespace heddle::kernels::cuda
