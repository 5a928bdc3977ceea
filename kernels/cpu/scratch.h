// Working memory of an op beside its arguments: it grows to the largest request and stays.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace heddle::kernels::cpu {

// Bytes between the buffers of two threads. A processor that reads or writes a buffer in order
// fetches lines beyond its end, some KB of them, and would take those of the next thread's each
// time (docs/benchmarks/cpu.md: up to a third of the speed).
inline constexpr int64_t kThreadsApart = 8192;

class Scratch {
 public:
  // At least `bytes`, aligned to 64, with undefined content; invalidates earlier results.
  void* Get(int64_t bytes) {
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = (bytes + bytes / 8 + 63) / 64 * 64;
      data_.reset(std::aligned_alloc(64, static_cast<size_t>(bytes_)));
      HEDDLE_CHECK(data_ != nullptr, "out of memory for working space");
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace heddle::kernels::cpu
