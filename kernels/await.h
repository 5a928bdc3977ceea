// Waiting for a value that another thread changes, without giving up the processor at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

namespace heddle::kernels {

// A pause takes 40 to 140 cycles on x86 processors of the last ten years, so this is 30 to 100
// microseconds of spinning: longer than the serial part between two ops of a forward, shorter than
// a scheduler's time slice.
inline constexpr int kMaxSpins = 2000;
inline constexpr int kMinSpins = 60;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins up to *spins times, then yields `yields` times, then sleeps, until changed(value) holds;
// returns that value. Spinning in vain halves *spins; success doubles it. Whoever changes the value
// calls its notify_all.
template <typename F>
uint32_t Await(const std::atomic<uint32_t>& value, int yields, int* spins, const F& changed) {
  for (int i = 0; i < *spins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (changed(now)) {
      *spins = std::min(2 * *spins, kMaxSpins);
      return now;
    }
    Pause();
  }
  *spins = std::max(*spins / 2, kMinSpins);
  for (int i = 0; i < yields; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (changed(now)) return now;
    std::this_thread::yield();
  }
  while (true) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (changed(now)) return now;
    value.wait(now, std::memory_order_acquire);
  }
}

}  // namespace heddle::kernels
