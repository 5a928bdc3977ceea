// Shared memory of a block of attention_flash.cuh, and how queries, keys and values come into it.
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace flash {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kKeys = 64;  // per stage
constexpr int kStages = 2;

// What matrix instructions compute with a cache's type.
template <typename Kv>
struct Computed {
  using Type = Kv;
};
template <>
struct Computed<Float8> {
  using Type = Half;
};
template <>
struct Computed<Int8> {
  using Type = BFloat16;
};

template <typename Kv>
constexpr bool IsInt8(Kv) {
  return false;
}
constexpr bool IsInt8(Int8) { return true; }

// Of four bytes, each of `Kv`: the even ones as a pair, and the odd ones.
HEDDLE_DEVICE void EvenAndOdd(uint32_t word, uint32_t& even, uint32_t& odd, Float8) {
  const uint32_t sorted = BytePermute(word, 0, 0x3120);
  even = HalvesOfF8(sorted & 0xFFFF);
  odd = HalvesOfF8(sorted >> 16);
}
HEDDLE_DEVICE void EvenAndOdd(uint32_t word, uint32_t& even, uint32_t& odd, Int8) {
  // 128 + (b & 127) less 128, or 256 for negative b; see fragments.cuh.
  even = SubtractPairs((word & 0x007F007Fu) | 0x43004300u, (word & 0x00800080u) | 0x43004300u,
                       BFloat16());
  word >>= 8;
  odd = SubtractPairs((word & 0x007F007Fu) | 0x43004300u, (word & 0x00800080u) | 0x43004300u,
                      BFloat16());
}

template <typename Kv, int kDim, int kRowWarps>
struct Layout {
  static constexpr bool kIsWide = sizeof(Kv) == 2;
  static constexpr int kUnit = 16 / sizeof(Kv);  // elements in 16 bytes
  static constexpr int kKeyWarps = kWarps / kRowWarps;
  static constexpr int kRows = 16 * kRowWarps;
  static constexpr int kStride = kDim + kUnit;  // elements of keys and values
  static constexpr int kQStride = kDim + 8;
  static constexpr int kScales = IsInt8(Kv()) ? kStages * kKeys : 0;
  static constexpr int kWarpKeys = kKeys / kKeyWarps;
  static constexpr int kKeyTiles = kWarpKeys / 8;  // columns of scores, in instructions
  static constexpr int kDimTiles = kDim / 8;       // columns of the output
  static constexpr int kStage = kKeys * kStride;
  // The warps' results of a decode tile lie where the keys were; rows apart so that neighbouring
  // columns of four places, pairs in four rows or of 8-bit caches fours in two, fall on different
  // banks.
  static constexpr int kMergeStride = kDim + (sizeof(Kv) == 1 ? 16 : 8);  // floats
  static constexpr int kMergeFloats = kKeyWarps * kRows * kMergeStride;
  static_assert(kKeyWarps == 1 || kMergeFloats * 4 <= 2 * kStages * kStage * int{sizeof(Kv)});
  static int SharedBytes() {
    return SharedBytesFor<int64_t>(kStages * kKeys) + SharedBytesFor<int64_t>(kScales) +
           SharedBytesFor<float>(2 * kScales) + SharedBytesFor<float>(2 * kWarps * 16) +
           SharedBytesFor<uint16_t>(kRows * kQStride) + SharedBytesFor<Kv>(2 * kStages * kStage);
  }
};

// Shared memory of a block.
template <typename Kv, int kDim, int kRowWarps>
struct Memory {
  using L = Layout<Kv, kDim, kRowWarps>;
  using Q = typename Computed<Kv>::Type;
  Shared<int64_t> offsets;       // [kStages, kKeys] bytes into the cache, -1: no such key
  Shared<int64_t> scale_places;  // [kStages, kKeys] of kInt8
  Shared<float> scales;          // [2, kStages, kKeys] of keys, of values
  Shared<float> states;          // [kWarps, 16, 2] max and sum, for the merge
  Shared<Q> q;                   // [kRows, kQStride]
  Shared<Kv> k;                  // [kStages, kKeys, kStride]
  Shared<Kv> v;
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : offsets(arena.Take<int64_t>(kStages * kKeys)),
        scale_places(arena.Take<int64_t>(L::kScales)),
        scales(arena.Take<float>(2 * L::kScales)),
        states(arena.Take<float>(2 * kWarps * 16)),
        q(arena.Take<Q>(L::kRows * L::kQStride)),
        k(arena.Take<Kv>(kStages * L::kStage)),
        v(arena.Take<Kv>(kStages * L::kStage)) {}
  // [kKeyWarps, kRows, kMergeStride] over k and v.
  HEDDLE_DEVICE static Shared<float> Merge() {
    SharedArena arena;
    arena.Take<int64_t>(kStages * kKeys);
    arena.Take<int64_t>(L::kScales);
    arena.Take<float>(2 * L::kScales);
    arena.Take<float>(2 * kWarps * 16);
    arena.Take<Q>(L::kRows * L::kQStride);
    return arena.Take<float>(L::kMergeFloats);
  }
};

constexpr int kQueryUnit = 8;  // columns of a query that are moved at once, 16 bytes

// Puts columns [c, c + 8) of a query at `row`: where they stand or, for 8-bit keys, as the bytes of
// 16 columns of those are dealt, even ones first; see attention_flash.cuh.
template <typename Kv, typename Q>
HEDDLE_DEVICE void PutQueryUnit(const Group<BFloat16, kQueryUnit>& from, int c, Shared<Q> row) {
  if constexpr (sizeof(Kv) == 2) {
    Group<Q, kQueryUnit> unit;
    HEDDLE_UNROLL
    for (int i = 0; i < kQueryUnit; ++i) unit.item[i] = RoundTo(ToFloat(from.item[i]), Q());
    row.SetAs(c, unit);
  } else {
    Vec8 even, odd;
    HEDDLE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const BFloat16* four = from.item + 4 * i;
      even.word[i] = Pack2(ToFloat(four[0]), ToFloat(four[2]), Q());
      odd.word[i] = Pack2(ToFloat(four[1]), ToFloat(four[3]), Q());
    }
    const int to = c / 16 * 16 + c % 16 / 2;
    row.SetAs(to, even);
    row.SetAs(to + 8, odd);
  }
}

// Rows that the sequence does not have, and columns past the head's, are zeros.
template <typename Kv, typename M>
HEDDLE_DEVICE void LoadQueries(const AttentionParams& p, const SequenceView& s,
                               const AttentionTile& tile, const M& memory) {
  using L = typename M::L;
  constexpr int kUnits = (L::kQStride - 8) / kQueryUnit;
  const int dim = p.args.cache.head_dim;
  const bool aligned =
      reinterpret_cast<uint64_t>(p.args.q.data) % 16 == 0 && p.args.q.stride % kQueryUnit == 0;
  HEDDLE_UNROLL_BY(4)
  for (int i = ThreadX(); i < L::kRows * kUnits; i += kThreads) {
    const int row = i / kUnits;
    const int c = i % kUnits * kQueryUnit;
    const int packed = tile.first + row;
    Group<BFloat16, kQueryUnit> unit = {};
    if (s.Has(packed) && c < dim) {
      const BFloat16* q = p.args.q.row<BFloat16>(QueryRow(p, tile, s, packed)) +
                          static_cast<int64_t>(s.Head(packed)) * dim + c;
      if (aligned) {
        unit = LoadGroup<kQueryUnit>(q);
      } else {
        HEDDLE_UNROLL
        for (int j = 0; j < kQueryUnit; ++j) unit.item[j] = q[j];
      }
    }
    PutQueryUnit<Kv>(unit, c, memory.q.From(row * L::kQStride));
  }
}

// Starts the copies of a stage's keys and values; absent ones become zeros.
template <typename Kv, typename M>
HEDDLE_DEVICE void LoadStage(const AttentionParams& p, int stage, const M& memory) {
  using L = typename M::L;
  constexpr int kChunks = (L::kStride - L::kUnit) / L::kUnit;  // of 16 bytes in a row
  const KvCacheView& cache = p.args.cache;
  const uint8_t* keys = static_cast<const uint8_t*>(cache.keys);
  const uint8_t* values = static_cast<const uint8_t*>(cache.values);
  const int row_bytes = cache.head_dim * static_cast<int>(sizeof(Kv));
  HEDDLE_UNROLL_BY(4)
  for (int i = ThreadX(); i < kKeys * kChunks; i += kThreads) {
    const int key = i / kChunks;
    const int c = i % kChunks * 16;
    const int64_t offset = memory.offsets.Get(stage * kKeys + key);
    const bool there = offset >= 0 && c < row_bytes;
    const int64_t from = there ? offset + c : 0;
    const int to = stage * L::kStage + key * L::kStride + i % kChunks * L::kUnit;
    CopyAsync16(memory.k, to, keys + from, there);
    CopyAsync16(memory.v, to, values + from, there);
  }
  if constexpr (IsInt8(Kv())) {
    for (int i = ThreadX(); i < 2 * kKeys; i += kThreads) {
      const int key = i % kKeys;
      const bool there = memory.offsets.Get(stage * kKeys + key) >= 0;
      const int64_t from = there ? memory.scale_places.Get(stage * kKeys + key) : 0;
      CopyAsync4(memory.scales, i / kKeys * L::kScales + stage * kKeys + key,
                 (i < kKeys ? keys : values) + from, there);
    }
  }
  CopyAsyncCommit();
}

}  // namespace flash
}  // namespace heddle::kernels::cuda
