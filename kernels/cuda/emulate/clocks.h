// Vector clocks of the threads of a block: who has learned, by a barrier of any kind, what which
// other thread has done. Barriers of the whole block need none of this (see shadow.h); barriers
// that some threads arrive at and others wait for do.
// Source: Lamport 1978; Flanagan and Freund, "FastTrack", PLDI 2009.
// Thread-safety: none; owned by the emulator.
#pragma once

#include <cstdint>
#include <vector>

namespace heddle::kernels::cuda::emulate {

using Clock = std::vector<uint32_t>;  // [threads]; empty: knows nothing

class Clocks {
 public:
  // Of a new block. Costs nothing until Start.
  void Reset() { clocks_.clear(); }
  // From the first barrier on that orders some threads only.
  void Start(int32_t threads);
  bool started() const { return !clocks_.empty(); }

  // The thread's own time: accesses bear it. 1 before Start.
  uint32_t Own(int32_t thread) const { return started() ? clocks_[thread][thread] : 1; }
  // Whoever acquires `to` afterwards knows all that `thread` has done and knows.
  void Release(int32_t thread, Clock* to);
  void Acquire(int32_t thread, const Clock& from);
  // Threads [first, first + count) all learn what any of them knows.
  void Meet(int32_t first, int32_t count);
  // Whether `thread` knows what `other` did at its time `clock`.
  bool Knows(int32_t thread, int32_t other, uint32_t clock) const {
    return thread == other || clocks_[thread][other] >= clock;
  }

 private:
  std::vector<Clock> clocks_;  // [threads]
};

}  // namespace heddle::kernels::cuda::emulate
