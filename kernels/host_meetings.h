// Memory of the host for ops across ranks that do not reach each other's memory: an interface that
// a device has beside Device if it meets such ranks through page-locked memory. Whoever loads a
// model says how much can pass at most, so that all of it is taken when the device joins, and none
// in a step.
//
// Not part of Device, which everything includes. Thread-safety: as Device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"

namespace heddle::kernels {

// The most bytes that pass between the ranks of one group at a time. Empty lists: nothing does.
struct MeetingSizes {
  // [ranks that share layers]: what this rank takes of each one's part of a sum or a gather, and
  // what it gives itself.
  std::vector<int64_t> parts;
  int64_t late_part = 0;  // of a sum that begins before it ends (late_sums.h); 0: none does
  // [stages]: messages to and from each of them.
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
};

// The parts of ranks in other processes travel behind headers of this size.
inline constexpr int64_t kPartHeaderBytes = 16;
// Own parts of sums that begin before they end are kept in so many places in turn.
inline constexpr int32_t kLatePartPlaces = 4;

// The page-locked memory that rank `rank` takes for them.
int64_t PlaceBytes(const MeetingSizes& sizes, int32_t rank);

class HostMeetings {
 public:
  virtual ~HostMeetings() = default;

  struct Room {
    MeetingSizes ranks;   // that share layers
    MeetingSizes stages;  // of a pipeline
    // The host's free memory at the time of the call; empty: not known.
    std::function<int64_t()> free_bytes;
  };
  // For all groups that the device joins from now on whose ranks do not reach each other's memory:
  // joining takes the memory, and fails with RESOURCE_EXHAUSTED, which says how much is needed, if
  // the host does not have it. Ops with more than that then fail, as they do without this call.
  virtual void SetRoom(Room room) = 0;
};

}  // namespace heddle::kernels
