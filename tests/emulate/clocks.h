// Vector clocks of the threads of a block: they tell which thread has learned, through barriers,
// what another has done. Barriers of the whole block do not need them (see shadow.h); barriers at
// which some threads arrive and others wait do.
// Source: Lamport 1978; Flanagan and Freund, "FastTrack", PLDI 2009.
// Thread-safety: none; owned by the emulator.
#pragma once

#include <cstdint>
#include <vector>

namespace heddle::kernels::cuda::emulate {

using Clock = std::vector<uint32_t>;  // [threads]; empty: knows nothing

class Clocks {
 public:
  // Starts a new block. Costs nothing until Start.
  void Reset() { clocks_.clear(); }
  // Called at the first barrier that orders only some threads.
  void Start(int32_t threads);
  bool started() const { return !clocks_.empty(); }

  // The thread's own time, which is stored with accesses. 1 before Start.
  uint32_t Own(int32_t thread) const { return started() ? clocks_[thread][thread] : 1; }
  // A thread that acquires `to` afterwards knows all that `thread` has done and knows.
  void Release(int32_t thread, Clock* to);
  void Acquire(int32_t thread, const Clock& from);
  // Lets threads [first, first + count) all learn what any of them knows.
  void Meet(int32_t first, int32_t count);
  // Whether `thread` knows what `other` did at its time `clock`.
  bool Knows(int32_t thread, int32_t other, uint32_t clock) const {
    return thread == other || clocks_[thread][other] >= clock;
  }

 private:
  std::vector<Clock> clocks_;  // [threads]
};

}  // namespace heddle::kernels::cuda::emulate
