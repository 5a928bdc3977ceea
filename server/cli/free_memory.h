// Returns freed memory to the operating system. The C library keeps the memory of a burst of
// requests in case the next one comes soon: hundreds of megabytes, which count against a
// container's limit.
#pragma once

#include <chrono>
#include <cstdint>

namespace heddle::server {

// Bytes that the C library holds unused; 0 where it does not tell.
int64_t FreeHeapBytes();

// Checks now and then whether there are many of them. Thread-safety: one thread.
class FreeMemory {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns true if it returned some, which takes milliseconds, during which other allocations may
  // wait.
  bool Check(Clock::time_point now);

 private:
  static constexpr std::chrono::seconds kInterval{5};
  // Less is not worth the page faults of touching it again.
  static constexpr int64_t kMostFreeBytes = int64_t{32} << 20;

  Clock::time_point last_check_{};
};

}  // namespace heddle::server
