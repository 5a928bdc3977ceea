// The machine as kernels that meet those of other devices use it: words that pass between devices,
// and a clock for giving up. Like primitives.cuh, of which it is a part of its own, it has two
// implementations.
//
// A thread that finds with LoadAcquire the word that another device's thread stored with
// StoreRelease also finds what that thread's block had stored before a FenceSystem and a barrier.
// Source: PTX ISA, "Memory Consistency Model" (scope .sys).
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/primitives.cuh"

#if defined(HEDDLE_CUDA_EMULATE)
#include "tests/emulate/peer_primitives_host.cuh"
#else

namespace heddle::kernels::cuda {

HEDDLE_DEVICE void FenceSystem() { __threadfence_system(); }
HEDDLE_DEVICE void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;\n" ::"l"(to), "r"(value) : "memory");
}
HEDDLE_DEVICE uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];\n" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Nanoseconds; the clock ticks about once in a microsecond.
HEDDLE_DEVICE uint64_t NanoTime() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now));
  return now;
}

// Between two looks at a word that another device will change.
HEDDLE_DEVICE void PauseSpin() {}

// Loads of what another device has stored: never from this multiprocessor's L1.
HEDDLE_DEVICE float LoadPeer(const float* from) { return __ldcg(from); }
HEDDLE_DEVICE BFloat16 LoadPeer(const BFloat16* from) {
  return {__ldcg(reinterpret_cast<const unsigned short*>(from))};
}

}  // namespace heddle::kernels::cuda

#endif
