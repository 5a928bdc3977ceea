// Primitives of sm_90a for the emulator. Included only by primitives_hopper.cuh.
#pragma once

#include "tests/emulate/async.h"

#define HEDDLE_HAS_SM90A 1

namespace heddle::kernels::cuda {

using BlockBarriers = Shared<uint64_t>;

namespace emulate {

template <typename T>
int OffsetOf(Shared<T> piece, int i) {
  return static_cast<int>(reinterpret_cast<const char*>(piece.raw(i)) - SharedBase());
}

}  // namespace emulate

template <typename T>
uint32_t AddressOf(Shared<T> piece, int i) {
  return static_cast<uint32_t>(emulate::OffsetOf(piece, i));
}

inline void BarrierInit(BlockBarriers barriers, int i, int count) {
  emulate::BarrierInit(emulate::OffsetOf(barriers, i), count);
}
inline void BarriersInitialised() {}
inline void BarrierArrive(BlockBarriers barriers, int i) {
  emulate::BarrierArrive(emulate::OffsetOf(barriers, i), 0);
}
inline void BarrierArriveExpecting(BlockBarriers barriers, int i, int bytes) {
  emulate::BarrierArrive(emulate::OffsetOf(barriers, i), bytes);
}
inline void BarrierWait(BlockBarriers barriers, int i, uint32_t parity) {
  emulate::BarrierWait(emulate::OffsetOf(barriers, i), parity);
}
inline void NamedBarrierSync(int id, int threads) { emulate::NamedBarrier(id, threads, true); }
inline void NamedBarrierArrive(int id, int threads) { emulate::NamedBarrier(id, threads, false); }

inline void PrefetchTensorMap(const TensorMap&) {}
template <typename T>
void CopyTile(Shared<T> to, int i, const TensorMap& map, int x, int y, BlockBarriers barriers,
              int barrier) {
  emulate::CopyTile(emulate::OffsetOf(to, i), map, x, y, emulate::OffsetOf(barriers, barrier));
}
inline void FenceProxies() { emulate::FenceProxies(); }

template <int kCount>
void RegistersUp() {
  emulate::SetRegisters(kCount);
}
template <int kCount>
void RegistersDown() {
  emulate::SetRegisters(kCount);
}

inline void WarpgroupFence() { emulate::ProductFence(); }
inline void WarpgroupCommit() { emulate::ProductCommit(); }
template <int kGroupsLeft>
void WarpgroupWait() {
  emulate::ProductWait(kGroupsLeft);
}
template <int kCount>
void HoldSums(float (&)[kCount][4]) {}

namespace emulate {

template <int kTiles>
Product ProductOf(float (&c)[kTiles][4], uint64_t b, bool adds, ProductType type) {
  Product product;
  product.sums = &c[0][0];
  product.columns = 8 * kTiles;
  product.adds = adds;
  product.type = type;
  product.b_matrix = b;
  return product;
}
inline ProductType TypeOf(BFloat16) { return ProductType::kBF16; }
inline ProductType TypeOf(Half) { return ProductType::kF16; }
inline ProductType TypeOf(Float8) { return ProductType::kE4M3; }

}  // namespace emulate

template <int kTiles, typename T>
void WarpgroupMma(float (&c)[kTiles][4], uint64_t a, uint64_t b, bool adds, T type) {
  emulate::Product product = emulate::ProductOf(c, b, adds, emulate::TypeOf(type));
  product.a_matrix = a;
  emulate::ProductIssue(product);
}
template <int kTiles, typename T>
void WarpgroupMma(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t b, bool adds, T type) {
  emulate::Product product = emulate::ProductOf(c, b, adds, emulate::TypeOf(type));
  product.a = a;
  emulate::ProductIssue(product);
}
template <int kTiles, typename T>
void WarpgroupMmaTransposed(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t b, bool adds,
                            T type) {
  emulate::Product product = emulate::ProductOf(c, b, adds, emulate::TypeOf(type));
  product.a = a;
  product.b_is_transposed = true;
  emulate::ProductIssue(product);
}

}  // namespace heddle::kernels::cuda
