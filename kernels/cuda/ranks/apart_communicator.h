// Lets GPUs of one process that do not read each other's memory meet as those of several processes
// do: a communicator of threads that says that it shares no memory, so that parts and rows pass
// through the host (host_relay.h).
//
// Thread-safety: as Communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/cuda/runtime/runtime.h"

namespace heddle::kernels::cuda {

// Whether device `from` of this machine can read the memory of `to`; ordinals.
bool CanReach(int32_t from, int32_t to);

class ApartCommunicator final : public Communicator {
 public:
  // The posted messages that nobody has received yet. All ranks of a group share it.
  class Letters {
   public:
    // Returns the copy's number.
    uint64_t Keep(const void* data, int64_t bytes);
    // Copies it out and forgets it. Aborts the program if it has another size.
    void Take(uint64_t number, void* data, int64_t bytes);

   private:
    std::mutex mutex_;
    uint64_t next_ = 0;                                               // GUARDED_BY(mutex_)
    std::unordered_map<uint64_t, std::vector<uint8_t>> undelivered_;  // GUARDED_BY(mutex_)
  };

  ApartCommunicator(std::shared_ptr<Communicator> group, std::shared_ptr<Letters> letters);

  int32_t rank() const override { return group_->rank(); }
  int32_t world() const override { return group_->world(); }
  bool shares_memory() const override { return false; }
  bool Exchange(const void* part, int64_t bytes, int64_t most_bytes,
                std::span<const void*> parts) override {
    return group_->Exchange(part, bytes, most_bytes, parts);
  }
  bool BeginExchange(const void* part, int64_t bytes, int64_t most_bytes) override {
    return group_->BeginExchange(part, bytes, most_bytes);
  }
  bool EndExchange(std::span<const void*> parts) override { return group_->EndExchange(parts); }
  bool Barrier() override { return group_->Barrier(); }
  // The data is free on return from each of these, as behind a network's.
  bool Send(const void* data, int64_t bytes, int32_t to) override { return Post(data, bytes, to); }
  bool Post(const void* data, int64_t bytes, int32_t to) override;
  bool Recv(void* data, int64_t bytes, int32_t from) override;

  void Abort(const absl::Status& why) override { group_->Abort(why); }
  absl::Status status() const override { return group_->status(); }
  void Report(int64_t begun, bool waits) override { group_->Report(begun, waits); }
  void AtAbort(std::function<void()> call) override { group_->AtAbort(std::move(call)); }

 private:
  // The numbers of messages to a rank, in turn: more than can be under way.
  static constexpr size_t kPlaces = 128;

  const std::shared_ptr<Communicator> group_;
  const std::shared_ptr<Letters> letters_;
  struct Numbers {
    uint64_t places[kPlaces] = {};
    size_t next = 0;
  };
  std::vector<Numbers> sent_;  // to each rank
};

// `group` as it is if it shares no memory, or if the devices of all its ranks reach each other;
// else one that says that it does not. All ranks call this at the same time, and have the same
// answer. An error: the group was aborted.
absl::StatusOr<std::shared_ptr<Communicator>> MeetWithinReach(int32_t ordinal,
                                                              std::shared_ptr<Communicator> group);

}  // namespace heddle::kernels::cuda
