// Shared memory of a block of attention_flash.cuh and attention_decode.cuh, and the copies of
// queries, keys and values into it.
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace flash {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kKeys = 64;  // per stage

template <typename Kv>
constexpr bool IsInt8(Kv) {
  return false;
}
constexpr bool IsInt8(Int8) { return true; }

// Splits four bytes, each of type `Kv`, into the pair of even ones and the pair of odd ones.
HEDDLE_DEVICE void EvenAndOdd(uint32_t word, uint32_t& even, uint32_t& odd, Float8) {
  const uint32_t sorted = BytePermute(word, 0, 0x3120);
  even = HalvesOfF8(sorted & 0xFFFF);
  odd = HalvesOfF8(sorted >> 16);
}
HEDDLE_DEVICE void EvenAndOdd(uint32_t word, uint32_t& even, uint32_t& odd, Int8) {
  // It is 128 + (b & 127) less 128, or less 256 for negative b; see fragments.cuh.
  even = SubtractPairs(MaskOr(word, 0x007F007F, 0x43004300), MaskOr(word, 0x00800080, 0x43004300),
                       BFloat16());
  word >>= 8;
  odd = SubtractPairs(MaskOr(word, 0x007F007F, 0x43004300), MaskOr(word, 0x00800080, 0x43004300),
                      BFloat16());
}

// kDecodes: for a tile of attention_decode.cuh, whose warps have different keys.
template <typename Kv, int kDim, bool kDecodes>
struct Layout {
  static constexpr bool kIsWide = sizeof(Kv) == 2;
  static constexpr int kStages = FlashStages(sizeof(Kv), kDecodes, kDim);
  static constexpr int kUnit = 16 / sizeof(Kv);  // elements in 16 bytes
  static constexpr int kRows = kDecodes ? kDecodeTileRows : kPrefillTileRows;
  static constexpr int kStride = kDim + kUnit;  // elements of keys and values
  static constexpr int kQStride = kDim + 8;
  static constexpr int kScales = IsInt8(Kv()) ? kStages * kKeys : 0;
  static constexpr int kWarpKeys = kDecodes ? kKeys / kWarps : kKeys;
  static constexpr int kKeyTiles = kWarpKeys / 8;  // columns of scores, in instructions
  static constexpr int kStage = kKeys * kStride;
  // Floats from row to row of the warps' results of a decode tile, which are in the memory of the
  // keys: neighbouring columns of eight places, in four pairs of rows, are in different banks.
  static constexpr int kMergeStride = kDim + 4;
  static constexpr int kMergeFloats = kDecodes ? kWarps * kRows * kMergeStride : 0;
  static_assert(kMergeFloats * 4 <= 2 * kStages * kStage * int{sizeof(Kv)});
  static int SharedBytes() {
    return SharedBytesFor<int64_t>(kStages * kKeys) + SharedBytesFor<int64_t>(kScales) +
           SharedBytesFor<float>(2 * kScales) + SharedBytesFor<float>(2 * kWarps * 16) +
           SharedBytesFor<uint16_t>(kRows * kQStride) + SharedBytesFor<Kv>(2 * kStages * kStage);
  }
};

// Shared memory of a block.
template <typename Kv, int kDim, bool kDecodes>
struct Memory {
  using L = Layout<Kv, kDim, kDecodes>;
  using Q = typename Computed<Kv>::Type;
  Shared<int64_t> offsets;       // [kStages, kKeys] bytes into the cache, -1: no such key
  Shared<int64_t> scale_places;  // [kStages, kKeys] of kInt8
  Shared<float> scales;          // [2, kStages, kKeys] of keys, of values
  Shared<float> states;          // [kWarps, 16, 2] max and sum, for the merge
  Shared<Q> q;                   // [kRows, kQStride]
  Shared<Kv> k;                  // [kStages, kKeys, kStride]
  Shared<Kv> v;
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : offsets(arena.Take<int64_t>(L::kStages * kKeys)),
        scale_places(arena.Take<int64_t>(L::kScales)),
        scales(arena.Take<float>(2 * L::kScales)),
        states(arena.Take<float>(2 * kWarps * 16)),
        q(arena.Take<Q>(L::kRows * L::kQStride)),
        k(arena.Take<Kv>(L::kStages * L::kStage)),
        v(arena.Take<Kv>(L::kStages * L::kStage)) {}
  // [kWarps, kRows, kMergeStride] in the memory of k and v.
  HEDDLE_DEVICE static Shared<float> Merge() {
    SharedArena arena;
    arena.Take<int64_t>(L::kStages * kKeys);
    arena.Take<int64_t>(L::kScales);
    arena.Take<float>(2 * L::kScales);
    arena.Take<float>(2 * kWarps * 16);
    arena.Take<Q>(L::kRows * L::kQStride);
    return arena.Take<float>(L::kMergeFloats);
  }
};

constexpr int kQueryUnit = 8;  // columns of a query that are moved at once, 16 bytes

// Stores columns [c, c + 8) of a query at `row`: in place or, for 8-bit keys, in the order of the
// bytes of their 16 columns, even ones first; see attention_flash.cuh.
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

// Stores kRows rows of queries, kStride apart, for a cache of type `Kv`, by kThreadsOf threads.
// Missing rows of the sequence, and columns beyond the head's, are zeros.
template <typename Kv, int kRows, int kStride, int kThreadsOf, typename Q>
HEDDLE_DEVICE void LoadQueryRows(const AttentionParams& p, const SequenceView& s,
                                 const AttentionTile& tile, Shared<Q> to) {
  constexpr int kUnits = (kStride - 8) / kQueryUnit;
  const int dim = p.args.cache.head_dim;
  const bool aligned =
      reinterpret_cast<uint64_t>(p.args.q.data) % 16 == 0 && p.args.q.stride % kQueryUnit == 0;
  HEDDLE_UNROLL_BY(4)
  for (int i = ThreadX(); i < kRows * kUnits; i += kThreadsOf) {
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
    PutQueryUnit<Kv>(unit, c, to.From(row * kStride));
  }
}

template <typename Kv, typename M>
HEDDLE_DEVICE void LoadQueries(const AttentionParams& p, const SequenceView& s,
                               const AttentionTile& tile, const M& memory) {
  using L = typename M::L;
  LoadQueryRows<Kv, L::kRows, L::kQStride, kThreads>(p, s, tile, memory.q);
}

// Starts the copies of a stage's keys and values; missing ones become zeros.
template <typename Kv, typename M>
HEDDLE_DEVICE void LoadStage(const AttentionParams& p, int stage, const M& memory) {
  using L = typename M::L;
  constexpr int kChunks = (L::kStride - L::kUnit) / L::kUnit;  // 16-byte chunks of a row
  const KvCacheView& cache = p.args.cache;
  const uint8_t* keys = static_cast<const uint8_t*>(cache.keys);
  const uint8_t* values = static_cast<const uint8_t*>(cache.values);
  const int row_bytes = cache.head_dim * static_cast<int>(sizeof(Kv));
  static_assert(kKeys * kChunks % kThreads == 0 && kThreads % kChunks == 0);
  const int c = ThreadX() % kChunks;
  const bool in_row = 16 * c < row_bytes;
  HEDDLE_UNROLL_BY(4)
  for (int i = 0; i < kKeys * kChunks / kThreads; ++i) {
    const int key = i * (kThreads / kChunks) + ThreadX() / kChunks;
    const int64_t offset = memory.offsets.Get(stage * kKeys + key);
    const bool there = offset >= 0 && in_row;
    const int64_t from = there ? offset + 16 * c : 0;
    const int to = stage * L::kStage + key * L::kStride + c * L::kUnit;
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

// The keys of a tile as they pass through the block's stages, in order. Stages are copied kAhead
// before they are used.
template <typename Kv, typename M>
class StagedKeys {
 public:
  static constexpr int kAhead = M::L::kStages - 1;

  HEDDLE_DEVICE StagedKeys(const AttentionParams& p, const SequenceView& s, const KeyRange& keys,
                           const M& memory)
      : p_(p),
        memory_(memory),
        kv_head_(s.kv_head),
        begin_(keys.begin),
        end_(keys.end),
        // Each of the first kKeys threads looks up one key of every stage.
        cursor_(p.batch, s.seq,
                keys.begin + ThreadX() < keys.end ? keys.begin + ThreadX() : keys.begin) {}

  // Finds the first stages' keys, which a barrier publishes to all threads.
  HEDDLE_DEVICE void FindFirst() {
    HEDDLE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (i == 0 || begin_ + i * kKeys < end_) Find(begin_ + i * kKeys, i);
    }
  }
  HEDDLE_DEVICE void LoadFirst() {
    HEDDLE_UNROLL_BY(1)
    for (int i = 0; i < kAhead; ++i) LoadIf(i == 0 || begin_ + i * kKeys < end_, i);
  }
  // Returns the place of the stage of keys from `first` on, which is ready for all threads. No
  // thread reads the stage before any more.
  HEDDLE_DEVICE int Next(int first) {
    const bool more = first + kAhead * kKeys < end_;
    if (more) Find(first + kAhead * kKeys, free_);
    CopyAsyncWait<kAhead - 1>();
    SyncThreads();
    LoadIf(more, free_);
    const int place = stage_;
    free_ = place;
    stage_ = place + 1 < M::L::kStages ? place + 1 : 0;
    return place;
  }

 private:
  HEDDLE_DEVICE void Find(int first_key, int stage) {
    if (ThreadX() >= kKeys) return;
    const int key = first_key + ThreadX();
    KeyPlace place = {-1, -1};
    if (key < end_) place = cursor_.Find(p_.batch, p_.args.cache, key, kv_head_);
    memory_.offsets.Set(stage * kKeys + ThreadX(), place.row);
    if constexpr (IsInt8(Kv())) memory_.scale_places.Set(stage * kKeys + ThreadX(), place.scale);
  }
  // Groups of copies are counted by stages, so an empty group is committed if none is left.
  HEDDLE_DEVICE void LoadIf(bool is_there, int stage) {
    if (is_there) {
      LoadStage<Kv>(p_, stage, memory_);
    } else {
      CopyAsyncCommit();
    }
  }

  const AttentionParams& p_;
  const M& memory_;
  int kv_head_, begin_, end_;
  int stage_ = 0;      // the next one to read
  int free_ = kAhead;  // the next one to copy to
  KeyCursor cursor_;
};

}  // namespace flash
}  // namespace heddle::kernels::cuda
