// The machine as kernels use it, and only through this header: thread indices, shared memory,
// barriers, warp collectives, asynchronous copies, matrix instructions, and conversions of element
// types.
//
// There are two implementations with the same meaning: primitives_device.cuh for nvcc (sm_80 and
// later), and the emulated one of tests/emulate, chosen by HEDDLE_CUDA_EMULATE. A kernel is a
// HEDDLE_KERNEL function of one parameter struct, uses nothing of CUDA directly, has threads in
// whole warps, and calls warp collectives with all 32 lanes.
//
// Early launches (programmatic dependent launch, sm_90): on devices that support it, a kernel's
// blocks may begin before the previous kernel on its lane has ended, as soon as all blocks of that
// kernel have called AllowNext or ended. Since kernels call AllowNext before they wait themselves,
// any number of earlier kernels may still be running. WaitForPrevious returns when they have ended
// and their writes are visible. The rules, which the emulator tests (tests/emulate/emulator.h):
//   1. Before WaitForPrevious a thread reads nothing that any kernel of a step writes, and writes
//      nothing that any other kernel reads or writes. Parameters, weights, and what was copied to
//      the device before the step's launches, such as plans and batches, may be read.
//   2. Every block waits before it ends, even if it has no work: the end of a kernel implies the
//      end of all earlier ones.
// A kernel without early work calls StartInTurn first. Early work takes long and depends on
// nothing: barriers, tensor maps, and above all the first weights.
// Below sm_90 launches are never early, and these functions do nothing.
// Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
//
// The matrix instruction is mma.m16n8k16 with F32 accumulation. With g = lane / 4, t = lane % 4:
//   a[0] = A[g][2t, 2t+1]     a[1] = A[g + 8][2t, 2t+1]
//   a[2] = A[g][2t+8, 2t+9]   a[3] = A[g + 8][2t+8, 2t+9]
//   b[0] = B[2t, 2t+1][g]     b[1] = B[2t+8, 2t+9][g]
//   c[0,1] = C[g][2t, 2t+1]   c[2,3] = C[g + 8][2t, 2t+1]
// Source: PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
#pragma once

#include <cstdint>

namespace heddle::kernels::cuda {

// Storage types; arithmetic is in float.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
struct Float8 {  // OCP E4M3
  uint8_t bits;
};
struct Int8 {  // to be multiplied by a separate scale
  int8_t code;
};
struct alignas(16) Vec16 {  // 16 bytes, moved at once
  uint32_t word[4];
};
struct alignas(8) Vec8 {
  uint32_t word[2];
};
template <int kWords>
struct alignas(4 * kWords) Words {  // 4, 8 or 16 bytes, moved at once
  uint32_t word[kWords];
};

inline constexpr uint32_t kFullMask = 0xFFFFFFFFu;

}  // namespace heddle::kernels::cuda

#if defined(HEDDLE_CUDA_EMULATE)
#include "tests/emulate/primitives_host.cuh"
#else
#include "kernels/cuda/primitives/primitives_device.cuh"
#endif

namespace heddle::kernels::cuda {

// Calls AllowNext first: the next kernel's blocks use the part of a multiprocessor that this
// kernel's leave free, and only after all of this kernel's blocks have begun, so that they only
// take spare memory bandwidth.
HEDDLE_DEVICE void StartInTurn() {
  AllowNext();
  WaitForPrevious();
}

HEDDLE_DEVICE int Lane() { return ThreadX() & 31; }
HEDDLE_DEVICE int WarpIndex() { return ThreadX() >> 5; }

// The block's dynamic shared memory, handed out from the front in pieces of 16 bytes. The launcher
// computes the same total with SharedBytesFor.
class SharedArena {
 public:
  HEDDLE_DEVICE SharedArena() : offset_(0) {}
  template <typename T>
  HEDDLE_DEVICE Shared<T> Take(int count) {
    Shared<T> piece = SharedPiece<T>(offset_, count);
    offset_ += (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
    return piece;
  }

 private:
  int offset_;
};

template <typename T>
constexpr int SharedBytesFor(int count) {
  return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

HEDDLE_DEVICE float LowFloat(uint32_t pair, BFloat16) { return BitsToFloat(pair << 16); }
HEDDLE_DEVICE float HighFloat(uint32_t pair, BFloat16) { return BitsToFloat(pair & 0xFFFF0000u); }
HEDDLE_DEVICE float LowFloat(uint32_t pair, Half) {
  return ToFloat(Half{static_cast<uint16_t>(pair)});
}
HEDDLE_DEVICE float HighFloat(uint32_t pair, Half) {
  return ToFloat(Half{static_cast<uint16_t>(pair >> 16)});
}

#if !defined(HEDDLE_CUDA_EMULATE)  // there both are one meeting of the warp, with the same result
HEDDLE_DEVICE float WarpSum(float value) {
  for (int mask = 16; mask > 0; mask >>= 1) value += ShuffleXor(value, mask);
  return value;
}

HEDDLE_DEVICE float WarpMax(float value) {
  for (int mask = 16; mask > 0; mask >>= 1) value = Max(value, ShuffleXor(value, mask));
  return value;
}
#endif

// Sum over the block, the same in every thread. `scratch` has one float per warp and is free to
// use again after the next barrier.
HEDDLE_DEVICE float BlockSum(float value, Shared<float> scratch) {
  value = WarpSum(value);
  if (Lane() == 0) scratch.Set(WarpIndex(), value);
  SyncThreads();
  float sum = 0;
  for (int w = 0; w < ThreadCount() / 32; ++w) sum += scratch.Get(w);
  SyncThreads();
  return sum;
}

HEDDLE_DEVICE float BlockMax(float value, Shared<float> scratch) {
  value = WarpMax(value);
  if (Lane() == 0) scratch.Set(WarpIndex(), value);
  SyncThreads();
  float max = scratch.Get(0);
  for (int w = 1; w < ThreadCount() / 32; ++w) max = Max(max, scratch.Get(w));
  SyncThreads();
  return max;
}

}  // namespace heddle::kernels::cuda
