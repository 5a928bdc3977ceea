// How a block meets those of other ranks (peer_params.h).
#pragma once

#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/cuda/ranks/peer_primitives.cuh"

namespace heddle::kernels::cuda {

// Shared memory of a block that meets others: their letters' addresses, and whether all came.
struct Met {
  Shared<uint64_t> addresses;  // [2 * kMaxPeers]: parts, then results
  Shared<uint32_t> missing;    // [1]

  HEDDLE_DEVICE explicit Met(SharedArena& arena)
      : addresses(arena.Take<uint64_t>(2 * kMaxPeers)), missing(arena.Take<uint32_t>(1)) {}
  static constexpr int Bytes() {
    return SharedBytesFor<uint64_t>(2 * kMaxPeers) + SharedBytesFor<uint32_t>(1);
  }

  template <typename T>
  HEDDLE_DEVICE const T* Part(int rank) const {
    return reinterpret_cast<const T*>(addresses.Get(rank));
  }
  template <typename T>
  HEDDLE_DEVICE const T* Result(int rank) const {
    return reinterpret_cast<const T*>(addresses.Get(kMaxPeers + rank));
  }
};

HEDDLE_DEVICE void NoteTrouble(const Peers& peers, Trouble trouble, int rank, uint32_t what,
                               uint32_t other) {
  PeerNote* note = peers.note;
  if (LoadAcquire(&note->trouble) != 0) return;
  note->rank = static_cast<uint32_t>(rank);
  note->what = what;
  note->other = other;
  StoreRelease(&note->trouble, static_cast<uint32_t>(trouble));
  StoreRelease(&note->abort, 1);
}

// Waits for `rank` until is_there(); false: it is given up.
template <typename IsThere>
HEDDLE_DEVICE bool WaitForPeer(const Peers& peers, int rank, uint32_t what,
                               const IsThere& is_there) {
  constexpr uint32_t kSpinsPerLook = 256;  // looks at the clock and the host's memory take longer
  uint64_t begin = 0;
  for (uint32_t spins = 1; !is_there(); ++spins) {
    PauseSpin();
    if (spins % kSpinsPerLook != 0) continue;
    if (LoadAcquire(&peers.note->abort) != 0) {
      NoteTrouble(peers, Trouble::kAborted, rank, what, 0);
      return false;
    }
    if (begin == 0) begin = NanoTime();
    if (NanoTime() - begin > peers.limit_ns) {
      NoteTrouble(peers, Trouble::kNobodyCame, rank, what, 0);
      return false;
    }
  }
  return true;
}

// The same for its letter.
HEDDLE_DEVICE bool WaitForLetter(const Peers& peers, const Letter* letter, uint32_t number,
                                 int rank, uint32_t what) {
  const auto is_there = [&] { return LoadAcquire(&letter->number) == number; };
  if (!WaitForPeer(peers, rank, what, is_there)) return false;
  if (letter->what == what) return true;
  NoteTrouble(peers, Trouble::kOtherOp, rank, what, letter->what);
  return false;
}

// Takes what letter `number` of each rank, at `letters`, says of its part and result; as Meet.
HEDDLE_DEVICE bool TakeLetters(const Peers& peers, const Letter* letters, uint32_t number,
                               uint32_t what, const Met& met) {
  const int other = ThreadX();
  if (other == 0) met.missing.Set(0, 0);
  SyncThreads();
  if (other < peers.world) {
    const Letter* letter = letters + other;
    if (WaitForLetter(peers, letter, number, other, what)) {
      met.addresses.Set(other, reinterpret_cast<uint64_t>(letter->part));
      met.addresses.Set(kMaxPeers + other, reinterpret_cast<uint64_t>(letter->result));
    } else {
      met.missing.AtomicAdd(0, 1);
    }
  }
  SyncThreads();
  return met.missing.Get(0) == 0;
}

// Gives `part` and `result` to block BlockX() of all ranks, and takes theirs into `met`. The same
// for all threads of the block; false: the op is given up. `extra`: meetings that this kernel has
// had before; the count goes up when the kernel calls EndMeetings.
HEDDLE_DEVICE bool Meet(const Peers& peers, uint32_t what, const void* part, const void* result,
                        uint32_t extra, const Met& met) {
  const int block = BlockX();
  const int other = ThreadX();
  const uint32_t count = peers.counts->meetings[block] + extra;
  const uint32_t number = count + 1;
  FenceSystem();
  SyncThreads();
  if (other < peers.world) {
    Letter* letter = &peers.boxes[other]->letters[block][count % 2][peers.rank];
    letter->part = part;
    letter->result = result;
    letter->what = what;
    StoreRelease(&letter->number, number);
  }
  return TakeLetters(peers, peers.boxes[peers.rank]->letters[block][count % 2], number, what, met);
}

// Ends a kernel that had `count` meetings. REQUIRES: no Meet behind it.
HEDDLE_DEVICE void EndMeetings(const Peers& peers, uint32_t count) {
  SyncThreads();
  if (ThreadX() == 0) peers.counts->meetings[BlockX()] += count;
}

// The op and its shape in a word, which ranks compare.
HEDDLE_HOST_DEVICE uint32_t OpWord(uint32_t op, int64_t rows, int64_t cols) {
  const auto r = static_cast<uint32_t>(rows);
  const auto c = static_cast<uint32_t>(cols);
  return op << 28 | ((r * 2654435761u ^ c * 2246822519u) >> 4);
}
inline constexpr uint32_t kSumOp = 1;
inline constexpr uint32_t kGatherOp = 2;
inline constexpr uint32_t kStageOp = 3;

}  // namespace heddle::kernels::cuda
