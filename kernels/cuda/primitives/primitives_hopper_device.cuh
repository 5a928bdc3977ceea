// Primitives of sm_90a for nvcc. Included only by primitives_hopper.cuh, which documents them.
// Kernels call them where HEDDLE_HAS_SM90A is 1. In a pass for another architecture they are
// declared all the same, because templates that name them are parsed there, too; no code is
// generated for them.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)  // or the host's pass
#define HEDDLE_HAS_SM90A 1
#else
#define HEDDLE_HAS_SM90A 0
#endif

namespace heddle::kernels::cuda {

using BlockBarriers = Shared<uint64_t>;

template <typename T>
HEDDLE_DEVICE uint32_t AddressOf(Shared<T> piece, int i) {
  return piece.address(i);
}

// The phase ends after `count` arrivals, and when all expected bytes have been copied.
HEDDLE_DEVICE void BarrierInit(BlockBarriers barriers, int i, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barriers.address(i)), "r"(count)
               : "memory");
}
// Called by the thread that initialised them, before the block's barrier after which others use
// them.
HEDDLE_DEVICE void BarriersInitialised() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
HEDDLE_DEVICE void BarrierArrive(BlockBarriers barriers, int i) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barriers.address(i)) : "memory");
}
HEDDLE_DEVICE void BarrierArriveExpecting(BlockBarriers barriers, int i, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barriers.address(i)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase of this parity is over. A new barrier is past the phase of parity 1.
HEDDLE_DEVICE void BarrierWait(BlockBarriers barriers, int i, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;}\n"
        : "=r"(done)
        : "r"(barriers.address(i)), "r"(parity)
        : "memory");
  } while (done == 0);
}
// Barrier `id` of 1 to 15 for `threads` threads in whole warps; Arrive does not wait.
HEDDLE_DEVICE void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
HEDDLE_DEVICE void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

HEDDLE_DEVICE void PrefetchTensorMap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
// Copies the box whose first element is column x, row y; rows outside of the matrix become zeros.
template <typename T>
HEDDLE_DEVICE void CopyTile(Shared<T> to, int i, const TensorMap& map, int x, int y,
                            BlockBarriers barriers, int barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];\n" ::"r"(to.address(i)),
      "l"(&map), "r"(x), "r"(y), "r"(barriers.address(barrier))
      : "memory");
}
// Makes this thread's stores readable by bulk copies and matrix instructions after a barrier.
HEDDLE_DEVICE void FenceProxies() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

template <int kCount>
HEDDLE_DEVICE void RegistersUp() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
HEDDLE_DEVICE void RegistersDown() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

HEDDLE_DEVICE void WarpgroupFence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
HEDDLE_DEVICE void WarpgroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kGroupsLeft>
HEDDLE_DEVICE void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kGroupsLeft) : "memory");
}
// Keeps the compiler from moving accesses to sums across this place: it does not know that a
// product is running in them.
template <int kCount>
HEDDLE_DEVICE void HoldSums(float (&c)[kCount][4]) {
  HEDDLE_UNROLL
  for (int n = 0; n < kCount; ++n) {
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
  }
}

#define HEDDLE_SUMS1(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define HEDDLE_SUMS4(c, n) \
  HEDDLE_SUMS1(c, n), HEDDLE_SUMS1(c, n + 1), HEDDLE_SUMS1(c, n + 2), HEDDLE_SUMS1(c, n + 3)
#define HEDDLE_SUMS8(c) HEDDLE_SUMS4(c, 0), HEDDLE_SUMS4(c, 4)
#define HEDDLE_SUMS12(c) HEDDLE_SUMS8(c), HEDDLE_SUMS4(c, 8)
#define HEDDLE_SUMS16(c) HEDDLE_SUMS12(c), HEDDLE_SUMS4(c, 12)
#define HEDDLE_SUMS20(c) HEDDLE_SUMS16(c), HEDDLE_SUMS4(c, 16)
#define HEDDLE_SUMS26(c) \
  HEDDLE_SUMS20(c), HEDDLE_SUMS4(c, 20), HEDDLE_SUMS1(c, 24), HEDDLE_SUMS1(c, 25)

#define HEDDLE_REGISTERS32                                                                     \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define HEDDLE_REGISTERS48 \
  HEDDLE_REGISTERS32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define HEDDLE_REGISTERS64 \
  HEDDLE_REGISTERS48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HEDDLE_REGISTERS80 \
  HEDDLE_REGISTERS64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define HEDDLE_REGISTERS104                                                                \
  HEDDLE_REGISTERS80                                                                       \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100," \
  "%101,%102,%103"

// Both matrices in shared memory, each contiguous along its depth, which `immediates` say where the
// type leaves a choice.
#define HEDDLE_MMA_SHARED(tiles, columns, registers, operand_a, operand_b, operand_adds, type,    \
                          depth, name, immediates)                                                \
  HEDDLE_DEVICE void WarpgroupMma(float(&c)[tiles][4], uint64_t a, uint64_t b, bool adds, type) { \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " operand_adds                                    \
                 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k" depth ".f32." name "." name      \
                 " {" HEDDLE_REGISTERS##registers "}, " operand_a ", " operand_b                  \
                                                  ", p, 1, 1" immediates ";}\n"                   \
                 : HEDDLE_SUMS##tiles(c)                                                          \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                                  \
  }
// A in registers; B contiguous along its depth (transposed: 0) or along its columns (1).
#define HEDDLE_MMA_REGISTERS(function, transposed, type, name)                                \
  HEDDLE_DEVICE void function(float(&c)[16][4], const uint32_t(&a)[4], uint64_t b, bool adds, \
                              type) {                                                         \
    asm volatile(                                                                             \
        "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"                                             \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " {" HEDDLE_REGISTERS64  \
        "}"                                                                                   \
        ", {%64, %65, %66, %67}, %68, p, 1, 1, " transposed ";}\n"                            \
        : HEDDLE_SUMS16(c)                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));   \
  }                                                                                           \
  HEDDLE_DEVICE void function(float(&c)[8][4], const uint32_t(&a)[4], uint64_t b, bool adds,  \
                              type) {                                                         \
    asm volatile(                                                                             \
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"                                             \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" HEDDLE_REGISTERS32   \
        "}"                                                                                   \
        ", {%32, %33, %34, %35}, %36, p, 1, 1, " transposed ";}\n"                            \
        : HEDDLE_SUMS8(c)                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));   \
  }
#define HEDDLE_MMA_SHARED_ALL(type, depth, name, immediates)                           \
  HEDDLE_MMA_SHARED(8, "64", 32, "%32", "%33", "%34", type, depth, name, immediates)   \
  HEDDLE_MMA_SHARED(12, "96", 48, "%48", "%49", "%50", type, depth, name, immediates)  \
  HEDDLE_MMA_SHARED(16, "128", 64, "%64", "%65", "%66", type, depth, name, immediates) \
  HEDDLE_MMA_SHARED(20, "160", 80, "%80", "%81", "%82", type, depth, name, immediates) \
  HEDDLE_MMA_SHARED(26, "208", 104, "%104", "%105", "%106", type, depth, name, immediates)
HEDDLE_MMA_SHARED_ALL(BFloat16, "16", "bf16", ", 0, 0")
HEDDLE_MMA_SHARED_ALL(Float8, "32", "e4m3", "")
HEDDLE_MMA_SHARED(16, "128", 64, "%64", "%65", "%66", Half, "16", "f16", ", 0, 0")
HEDDLE_MMA_REGISTERS(WarpgroupMma, "0", BFloat16, "bf16")
HEDDLE_MMA_REGISTERS(WarpgroupMma, "0", Half, "f16")
HEDDLE_MMA_REGISTERS(WarpgroupMmaTransposed, "1", BFloat16, "bf16")
HEDDLE_MMA_REGISTERS(WarpgroupMmaTransposed, "1", Half, "f16")
#undef HEDDLE_MMA_SHARED
#undef HEDDLE_MMA_SHARED_ALL
#undef HEDDLE_MMA_REGISTERS
#undef HEDDLE_REGISTERS32
#undef HEDDLE_REGISTERS48
#undef HEDDLE_REGISTERS64
#undef HEDDLE_REGISTERS80
#undef HEDDLE_REGISTERS104
#undef HEDDLE_SUMS1
#undef HEDDLE_SUMS4
#undef HEDDLE_SUMS8
#undef HEDDLE_SUMS12
#undef HEDDLE_SUMS16
#undef HEDDLE_SUMS20
#undef HEDDLE_SUMS26

}  // namespace heddle::kernels::cuda
