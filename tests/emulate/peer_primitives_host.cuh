// The emulator's primitives for kernels that meet those of other devices: a device is a thread of
// the host, so that words pass between threads. Included only by peer_primitives.cuh.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace heddle::kernels::cuda {

inline void FenceSystem() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void StoreRelease(uint32_t* to, uint32_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_release);
}
inline uint32_t LoadAcquire(const uint32_t* from) {
  return std::atomic_ref(*const_cast<uint32_t*>(from)).load(std::memory_order_acquire);
}
inline uint64_t NanoTime() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
inline void PauseSpin() { std::this_thread::yield(); }
inline float LoadPeer(const float* from) { return *from; }
inline BFloat16 LoadPeer(const BFloat16* from) { return *from; }

}  // namespace heddle::kernels::cuda
