// Primitives for nvcc. Included only by primitives.cuh, which documents them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#define HEDDLE_KERNEL __global__ void
#define HEDDLE_DEVICE __device__ __forceinline__
#define HEDDLE_HOST_DEVICE __host__ __device__ __forceinline__
#define HEDDLE_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define HEDDLE_PARAMS(type, name) const __grid_constant__ type name
#define HEDDLE_UNROLL _Pragma("unroll")
#define HEDDLE_UNROLL_BY(n) HEDDLE_UNROLL_BY_(unroll n)
#define HEDDLE_UNROLL_BY_(text) _Pragma(#text)

namespace heddle::kernels::cuda {

HEDDLE_DEVICE int ThreadX() { return static_cast<int>(threadIdx.x); }
HEDDLE_DEVICE int ThreadCount() { return static_cast<int>(blockDim.x); }
HEDDLE_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
HEDDLE_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
HEDDLE_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
HEDDLE_DEVICE int GridX() { return static_cast<int>(gridDim.x); }

HEDDLE_DEVICE void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
HEDDLE_DEVICE void AllowNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}
HEDDLE_DEVICE void PrefetchToL2([[maybe_unused]] const void* from, [[maybe_unused]] int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes));
#endif
}

HEDDLE_DEVICE void SyncThreads() { __syncthreads(); }
HEDDLE_DEVICE void SyncWarp() { __syncwarp(); }

// A typed view of shared memory: a plain pointer here; the emulator checks accesses.
template <typename T>
class Shared {
 public:
  HEDDLE_DEVICE explicit Shared(T* data) : data_(data) {}
  HEDDLE_DEVICE T Get(int i) const { return data_[i]; }
  HEDDLE_DEVICE void Set(int i, T value) const { data_[i] = value; }
  template <typename V>  // V's size at element i, aligned to it
  HEDDLE_DEVICE V GetAs(int i) const {
    return *reinterpret_cast<const V*>(data_ + i);
  }
  template <typename V>
  HEDDLE_DEVICE void SetAs(int i, V value) const {
    *reinterpret_cast<V*>(data_ + i) = value;
  }
  HEDDLE_DEVICE T AtomicAdd(int i, T value) const { return atomicAdd(data_ + i, value); }
  HEDDLE_DEVICE Shared<T> From(int i) const { return Shared<T>(data_ + i); }
  HEDDLE_DEVICE uint32_t address(int i) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(data_ + i));
  }

 private:
  T* data_;
};

template <typename T>
HEDDLE_DEVICE Shared<T> SharedPiece(int offset, int) {
  extern __shared__ __align__(1024) unsigned char heddle_shared_memory[];
  return Shared<T>(reinterpret_cast<T*>(heddle_shared_memory + offset));
}

template <typename T>
HEDDLE_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(kFullMask, value, mask);
}
template <typename T>
HEDDLE_DEVICE T ShuffleUp(T value, int delta) {  // lanes below `delta` keep their own
  return __shfl_up_sync(kFullMask, value, delta);
}
template <typename T>
HEDDLE_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(kFullMask, value, lane);
}
HEDDLE_DEVICE uint32_t Ballot(bool value) { return __ballot_sync(kFullMask, value); }
HEDDLE_DEVICE int PopCount(uint32_t bits) { return __popc(bits); }
// The maximum over the warp, in all lanes.
HEDDLE_DEVICE uint32_t WarpMaximum(uint32_t value) { return __reduce_max_sync(kFullMask, value); }
HEDDLE_DEVICE uint32_t WarpMinimum(uint32_t value) { return __reduce_min_sync(kFullMask, value); }

// Copies 16 bytes from global to shared memory without registers; zeros if !valid.
template <typename T>
HEDDLE_DEVICE void CopyAsync16(Shared<T> to, int i, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to.address(i)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// The same for 4 bytes.
template <typename T>
HEDDLE_DEVICE void CopyAsync4(Shared<T> to, int i, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to.address(i)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
HEDDLE_DEVICE void CopyAsyncCommit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kGroupsLeft>
HEDDLE_DEVICE void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroupsLeft) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8,
// and gets elements [lane / 4][2 (lane % 4)] and the next of each (transposed: the mirror image).
template <typename T>
HEDDLE_DEVICE void LoadMatrix4(uint32_t (&out)[4], Shared<T> rows, int i) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(rows.address(i))
               : "memory");
}
template <typename T>
HEDDLE_DEVICE void LoadMatrix4Transposed(uint32_t (&out)[4], Shared<T> rows, int i) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(rows.address(i))
               : "memory");
}

HEDDLE_DEVICE void Mma16816(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            BFloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
HEDDLE_DEVICE void Mma16816(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads weights, which are read once and should not displace activations from the L1 cache. It is
// volatile, so that loads stay on their side of WaitForPrevious; matrix instructions, which are
// not, move past them.
HEDDLE_DEVICE Vec16 LoadStreaming16(const void* from) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(from));
  return v;
}

// The same if the rest of the 256 bytes is read soon, by any thread: it is prefetched to the L2.
HEDDLE_DEVICE Vec16 LoadStreamingAhead16(const void* from) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(from));
  return v;
}

// Communication across blocks: values that a thread stored before FenceDevice and its block's
// barrier are found by other blocks with LoadFresh, after an atomic operation told them and they
// called FenceDevice.
HEDDLE_DEVICE int32_t AtomicAddGlobal(int32_t* at, int32_t value) { return atomicAdd(at, value); }
HEDDLE_DEVICE void FenceDevice() { __threadfence(); }
HEDDLE_DEVICE float LoadFresh(const float* from) { return __ldcg(from); }
HEDDLE_DEVICE Vec16 LoadFresh16(const void* from) {
  const uint4 v = __ldcg(static_cast<const uint4*>(from));
  return {{v.x, v.y, v.z, v.w}};
}

// One store instruction in any context: nvcc splits some stores of a Vec16 in four.
HEDDLE_DEVICE void StoreGlobal16(void* to, const Vec16& v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

HEDDLE_DEVICE float BitsToFloat(uint32_t bits) { return __uint_as_float(bits); }
HEDDLE_DEVICE uint32_t FloatToBits(float value) { return __float_as_uint(value); }
HEDDLE_DEVICE float ToFloat(float value) { return value; }
HEDDLE_DEVICE float ToFloat(BFloat16 value) {
  return BitsToFloat(static_cast<uint32_t>(value.bits) << 16);
}
HEDDLE_DEVICE float ToFloat(Half value) { return __half2float(__ushort_as_half(value.bits)); }
HEDDLE_DEVICE float ToFloat(Float8 value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E4M3)));
}
HEDDLE_DEVICE float ToFloat(Int8 value) { return static_cast<float>(value.code); }
HEDDLE_DEVICE float RoundTo(float value, float) { return value; }
HEDDLE_DEVICE BFloat16 RoundTo(float value, BFloat16) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
HEDDLE_DEVICE Half RoundTo(float value, Half) { return {__half_as_ushort(__float2half_rn(value))}; }
HEDDLE_DEVICE Float8 RoundTo(float value, Float8) {  // magnitudes beyond 448 become 448
  return {static_cast<uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3))};
}
HEDDLE_DEVICE float RoundToInteger(float value) { return rintf(value); }
HEDDLE_DEVICE uint32_t Pack2(float low, float high, BFloat16) {
  uint32_t pair;  // cvt takes the high half first
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
HEDDLE_DEVICE uint32_t Pack2(float low, float high, Half) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Exact if the values differ by a value of the type.
HEDDLE_DEVICE uint32_t SubtractPairs(uint32_t a, uint32_t b, BFloat16) {
  uint32_t out;
  asm("{.reg .b32 m; mov.b32 m, 0xBF80BF80; fma.rn.bf16x2 %0, %2, m, %1;}\n"  // a + b * -1
      : "=r"(out)
      : "r"(a), "r"(b));
  return out;
}

HEDDLE_DEVICE uint32_t MultiplyPairs(uint32_t a, uint32_t b, BFloat16) {
  uint32_t out;
  asm("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z;}\n"  // a * b + -0
      : "=r"(out)
      : "r"(a), "r"(b));
  return out;
}

// (word & mask)
// bits as one instruction, which nvcc does not generate for two constants.
HEDDLE_DEVICE uint32_t MaskOr(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
  return out;
}

// Byte i of the result is byte s_i of (a, b), 0..3 of a and 4..7 of b, s_i the i-th nibble of
// `selector`. REQUIRES: nibbles below 8.
HEDDLE_DEVICE uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

// Two E4M3 in the low half of `codes` as F16, exactly.
HEDDLE_DEVICE uint32_t HalvesOfF8(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t out;
  asm("{.reg .b16 c; cvt.u16.u32 c, %1; cvt.rn.f16x2.e4m3x2 %0, c;}\n" : "=r"(out) : "r"(codes));
  return out;
#else
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return pair.x | static_cast<uint32_t>(pair.y) << 16;
#endif
}

HEDDLE_DEVICE float Abs(float x) { return fabsf(x); }
HEDDLE_DEVICE float Max(float a, float b) { return fmaxf(a, b); }
HEDDLE_DEVICE float Exp2(float x) {  // 2 ulp; -infinity gives 0
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
HEDDLE_DEVICE float Exp(float x) { return expf(x); }
// Accurate to 2 units in the last place; 0 if y is beyond 2^126.
HEDDLE_DEVICE float DivideFast(float x, float y) { return __fdividef(x, y); }
HEDDLE_DEVICE double ExpF64(double x) { return exp(x); }
HEDDLE_DEVICE float Log(float x) { return logf(x); }
HEDDLE_DEVICE float Log2(float x) { return log2f(x); }
HEDDLE_DEVICE float Tanh(float x) { return tanhf(x); }
HEDDLE_DEVICE float Erfc(float x) { return erfcf(x); }
HEDDLE_DEVICE float Rsqrt(float x) { return 1.0f / sqrtf(x); }
HEDDLE_DEVICE void SinCos(double x, double* sin, double* cos) { sincos(x, sin, cos); }
HEDDLE_DEVICE bool IsNan(float x) { return isnan(x); }
HEDDLE_DEVICE float Infinity() { return __int_as_float(0x7F800000); }

}  // namespace heddle::kernels::cuda
