// The effects of sm_90's asynchronous units, bulk copies and warpgroup matrix instructions, on a
// block's shared memory, in lines of 128 bytes: the rows of the swizzled tiles that they use. It
// finds what shadow.h, which sees ordinary accesses, cannot: a tile read before its copy arrived,
// overwritten while it is read, or written by ordinary stores without a fence between the proxies.
// Thread-safety: none; owned by the emulator.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/emulate/clocks.h"

namespace heddle::kernels::cuda::emulate {

inline constexpr int32_t kLineBytes = 128;

class Lines {
 public:
  explicit Lines(const Clocks& clocks) : clocks_(clocks) {}

  void Reset(int32_t threads, int32_t bytes);

  // Each records the access and returns what is wrong, or nullptr. `line` counts from the block's
  // first byte.
  const char* OrdinaryRead(int32_t line) const;
  const char* OrdinaryWrite(int32_t line, int32_t thread);
  // A bulk copy was started, or has arrived.
  const char* Fill(int32_t line, int32_t thread);
  void Filled(int32_t line);
  // A matrix instruction was issued by `thread`'s warp.
  const char* MatrixRead(int32_t line, int32_t thread);

  // Makes the stores of `thread` so far visible to the asynchronous units, once a barrier orders
  // them.
  void Fence(int32_t thread) { ++fences_[thread]; }
  // Grows with every change of the line.
  uint64_t version(int32_t line) const { return lines_[line].version; }

 private:
  struct Touch {
    int32_t thread = 0;
    uint32_t clock = 0;
    uint32_t fences = 0;    // the thread's fences when it wrote
    bool is_async = false;  // a bulk copy: needs no fence
  };
  struct Line {
    std::vector<Touch> readers;  // matrix instructions, since the last writer
    std::vector<Touch> writers;
    bool is_filling = false;
    uint64_t version = 0;
  };

  bool Known(const std::vector<Touch>& touches, int32_t thread) const;
  bool Fenced(const std::vector<Touch>& writers) const;
  static void Note(const Touch& touch, std::vector<Touch>* touches);

  const Clocks& clocks_;
  std::vector<Line> lines_;
  std::vector<uint32_t> fences_;  // [threads]
};

}  // namespace heddle::kernels::cuda::emulate
