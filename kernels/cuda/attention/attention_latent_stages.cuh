// Shared memory of a block of attention_latent.cuh, and the copies of keys into it.
#pragma once

#include "kernels/cuda/attention/attention_flash.cuh"
#include "kernels/cuda/attention/attention_widen.cuh"

namespace heddle::kernels::cuda {
namespace latent {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kUnit = 8;        // elements in 16 bytes
constexpr int kStages = 2;      // of keys
constexpr int kValueKeys = 32;  // keys of a matrix load of values

// kRows: of a tile. kDim: columns of keys and values; narrower heads are filled up with zeros.
// kOwn: values are not keys.
template <int kRowsOf, int kDimOf, bool kOwn>
struct Shape {
  static constexpr int kRows = kRowsOf;
  static constexpr int kDim = kDimOf;
  static constexpr bool kOwnValues = kOwn;
  static constexpr int kUnits = kDim / kUnit;
  static constexpr int kStride = kDim + kUnit;  // elements of queries, keys and values
  static constexpr int kRawStride = kDim + 16;  // of keys and values of 8 bits
  static constexpr int kRawUnits = kDim / 16;
  static constexpr int kWarpColumns = kDim / kWarps;
  static constexpr int kColumnTiles = kWarpColumns / 8;
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kKeyWarps = kWarps / kRowTiles;  // warps that share rows
  static constexpr int kKeyTiles = kRows == 16 ? 1 : 2;
  static constexpr int kWarpKeys = 8 * kKeyTiles;
  static constexpr int kKeys = kKeyWarps * kWarpKeys;  // per stage
  static constexpr int kWeightStride = kKeys + kUnit;
  static constexpr int kStage = kKeys * kStride;
  static constexpr int kRawStage = kKeys * kRawStride;
  static_assert(kKeys % kValueKeys == 0 && kKeys * kUnits % kThreads == 0);
  static_assert(kDim % 64 == 0);
};

// Shared memory of a block.
template <typename S, typename Kv>
struct Memory {
  using Q = typename Computed<Kv>::Type;
  static constexpr bool kIsRaw = sizeof(Kv) == 1;
  static constexpr int kScales = flash::IsInt8(Kv()) ? kStages * S::kKeys : 0;
  static constexpr int kRaw = kIsRaw ? kStages * S::kRawStage : 0;
  static constexpr int kWideKeys = (kIsRaw ? 1 : kStages) * S::kStage;
  static constexpr int kValueScales = S::kOwnValues && kScales > 0 ? S::kKeys : 0;
  static constexpr int kRawValues = S::kOwnValues && kIsRaw ? S::kRawStage : 0;
  static constexpr int kWideValues = S::kOwnValues && !kIsRaw ? S::kStage : 0;

  Shared<int64_t> offsets;       // [kStages, kKeys] bytes into the cache, -1: no such key
  Shared<int64_t> scale_places;  // [kStages, kKeys] of kInt8
  Shared<float> scales;          // [kStages, kKeys] of kInt8
  Shared<float> of_warps;        // [kKeyWarps, kRows] largest scores of a stage; at the end sums
  Shared<float> shrink;          // [kRows] factors of older sums
  Shared<float> max;             // [kRows] at the end
  Shared<Q> weights;             // [kRows, kWeightStride]
  Shared<Q> q;                   // [kRows, kStride]
  Shared<Kv> raw;                // [kStages, kKeys, kRawStride] of 8 bits
  Shared<Q> keys;                // [kStages, kKeys, kStride]; of 8 bits one stage
  // Values of their own: one stage. Those of 8 bits become 16 where the keys were.
  Shared<float> value_scales;  // [kKeys] of kInt8
  Shared<Kv> raw_values;       // [kKeys, kRawStride] of 8 bits
  Shared<Q> values;            // [kKeys, kStride] of 16 bits
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : offsets(arena.Take<int64_t>(kStages * S::kKeys)),
        scale_places(arena.Take<int64_t>(kScales)),
        scales(arena.Take<float>(kScales)),
        of_warps(arena.Take<float>(S::kKeyWarps * S::kRows)),
        shrink(arena.Take<float>(S::kRows)),
        max(arena.Take<float>(S::kRows)),
        weights(arena.Take<Q>(S::kRows * S::kWeightStride)),
        q(arena.Take<Q>(S::kRows * S::kStride)),
        raw(arena.Take<Kv>(kRaw)),
        keys(arena.Take<Q>(kWideKeys)),
        value_scales(arena.Take<float>(kValueScales)),
        raw_values(arena.Take<Kv>(kRawValues)),
        values(arena.Take<Q>(kWideValues)) {}
  static constexpr int kSharedBytes =
      SharedBytesFor<int64_t>(kStages * S::kKeys) + SharedBytesFor<int64_t>(kScales) +
      SharedBytesFor<float>(kScales) + SharedBytesFor<float>(S::kKeyWarps * S::kRows) +
      2 * SharedBytesFor<float>(S::kRows) + SharedBytesFor<Q>(S::kRows * S::kWeightStride) +
      SharedBytesFor<Q>(S::kRows * S::kStride) + SharedBytesFor<Kv>(kRaw) +
      SharedBytesFor<Q>(kWideKeys) + SharedBytesFor<float>(kValueScales) +
      SharedBytesFor<Kv>(kRawValues) + SharedBytesFor<Q>(kWideValues);
};

// The keys of a tile as they pass through the block's two stages, in order, and values of their own
// through one. Copies are groups in the order keys, values, keys, values: while one is waited for,
// the next is on its way.
template <typename S, typename Kv>
class StagedKeys {
 public:
  HEDDLE_DEVICE StagedKeys(const AttentionParams& p, const SequenceView& s,
                           const AttentionTile& tile, const KeyRange& keys,
                           const Memory<S, Kv>& memory)
      : p_(p),
        memory_(memory),
        kv_head_(s.kv_head),
        begin_(keys.begin),
        end_(keys.end),
        // Each of the first kKeys threads looks up one key of every stage.
        finder_(p, tile, keys.begin + ThreadX() < keys.end ? keys.begin + ThreadX() : keys.begin) {}

  // Finds the first stage's keys, which a barrier publishes to all threads.
  HEDDLE_DEVICE void FindFirst() { Find(begin_, 0); }
  HEDDLE_DEVICE void LoadFirst() {
    Load(0);
    if constexpr (S::kOwnValues) LoadValues(0);
  }
  // Returns the place in Memory::keys of the stage of keys from `first` on, which is ready for all
  // threads. No thread reads the stage before any more.
  HEDDLE_DEVICE int Next(int first) {
    const int place = stage_;
    stage_ = 1 - stage_;
    const bool more = first + S::kKeys < end_;
    if (more) Find(first + S::kKeys, stage_);
    CopyAsyncWait<S::kOwnValues ? 1 : 0>();
    SyncThreads();
    if (more) {
      Load(stage_);
    } else if constexpr (S::kOwnValues) {
      CopyAsyncCommit();  // an empty group, so that values are always the last one but one
    }
    if constexpr (M::kIsRaw) {
      Convert(memory_.raw, place * S::kRawStage);
      SyncThreads();
      return 0;
    } else {
      return place;
    }
  }

  // The values of the stage that Next returned last have arrived for this thread.
  HEDDLE_DEVICE void WaitForValues() const { CopyAsyncWait<1>(); }
  // Makes them 16 bits wide, in place of the keys, which no thread reads any more.
  HEDDLE_DEVICE void ConvertValues() { Convert(memory_.raw_values, 0); }
  // Begins the copies of the values behind those, which no thread reads any more. `first`: as Next.
  HEDDLE_DEVICE void NextValues(int first) {
    if (first + S::kKeys < end_) LoadValues(stage_);
  }

  // Where Memory::scales has those of the stage that Next returned last.
  HEDDLE_DEVICE int scales() const { return (1 - stage_) * S::kKeys; }

 private:
  using M = Memory<S, Kv>;

  HEDDLE_DEVICE void Find(int first_key, int stage) {
    if (ThreadX() >= S::kKeys) return;
    const int key = first_key + ThreadX();
    KeyPlace place = {-1, -1};
    if (key < end_) place = finder_.Find(p_, key, kv_head_);
    memory_.offsets.Set(stage * S::kKeys + ThreadX(), place.row);
    if constexpr (M::kScales > 0) {
      memory_.scale_places.Set(stage * S::kKeys + ThreadX(), place.scale);
    }
  }
  // Starts the copies of a stage; missing keys and columns become zeros.
  HEDDLE_DEVICE void Load(int stage) {
    const void* keys = p_.args.cache.keys;
    if constexpr (M::kIsRaw) {
      LoadRaw(stage, keys, memory_.raw, stage * S::kRawStage);
      LoadScales(stage, keys, memory_.scales, stage * S::kKeys);
    } else {
      LoadWide(stage, keys, memory_.keys, stage * S::kStage);
    }
    CopyAsyncCommit();
  }
  HEDDLE_DEVICE void LoadValues(int stage) {
    const void* values = p_.args.cache.values;
    if constexpr (M::kIsRaw) {
      LoadRaw(stage, values, memory_.raw_values, 0);
      LoadScales(stage, values, memory_.value_scales, 0);
    } else {
      LoadWide(stage, values, memory_.values, 0);
    }
    CopyAsyncCommit();
  }
  // `to_at`: where the stage begins in `to`.
  HEDDLE_DEVICE void LoadWide(int stage, const void* array, Shared<typename M::Q> to, int to_at) {
    const KvCacheView& cache = p_.args.cache;
    const uint8_t* keys = static_cast<const uint8_t*>(array);
    HEDDLE_UNROLL_BY(3)
    for (int i = 0; i < S::kKeys * S::kUnits / kThreads; ++i) {
      const int at = i * kThreads + ThreadX();
      const int key = at / S::kUnits;
      const int unit = at % S::kUnits;
      const int64_t offset = memory_.offsets.Get(stage * S::kKeys + key);
      const bool there = offset >= 0 && unit * kUnit < cache.head_dim;
      CopyAsync16(to, to_at + key * S::kStride + unit * kUnit,
                  keys + (there ? offset + 16 * unit : 0), there);
    }
  }
  HEDDLE_DEVICE void LoadRaw(int stage, const void* array, Shared<Kv> to, int to_at) {
    const KvCacheView& cache = p_.args.cache;
    const uint8_t* keys = static_cast<const uint8_t*>(array);
    HEDDLE_UNROLL_BY(3)
    for (int at = ThreadX(); at < S::kKeys * S::kRawUnits; at += kThreads) {
      const int key = at / S::kRawUnits;
      const int unit = at % S::kRawUnits;
      const int64_t offset = memory_.offsets.Get(stage * S::kKeys + key);
      const bool there = offset >= 0 && unit * 16 < cache.head_dim;
      CopyAsync16(to, to_at + key * S::kRawStride + unit * 16,
                  keys + (there ? offset + 16 * unit : 0), there);
    }
  }
  HEDDLE_DEVICE void LoadScales(int stage, const void* array, Shared<float> to, int to_at) {
    if constexpr (M::kScales > 0) {
      if (ThreadX() >= S::kKeys) return;
      const uint8_t* keys = static_cast<const uint8_t*>(array);
      const int at = stage * S::kKeys + ThreadX();
      const bool there = memory_.offsets.Get(at) >= 0;
      CopyAsync4(to, to_at + ThreadX(), keys + (there ? memory_.scale_places.Get(at) : 0), there);
    }
  }
  // Makes 16 bits of what has arrived, as if it were keys; of kInt8 without their scales.
  HEDDLE_DEVICE void Convert(Shared<Kv> from, int from_at) {
    HEDDLE_UNROLL_BY(3)
    for (int i = 0; i < S::kKeys * S::kUnits / kThreads; ++i) {
      const int at = i * kThreads + ThreadX();
      const int key = at / S::kUnits;
      const int c = at % S::kUnits * kUnit;
      const auto codes = from.template GetAs<Vec8>(from_at + key * S::kRawStride + c);
      memory_.keys.SetAs(key * S::kStride + c, Widen(codes, 1.0f, Kv()));
    }
  }

  const AttentionParams& p_;
  const Memory<S, Kv>& memory_;
  int kv_head_, begin_, end_;
  int stage_ = 0;  // the next one to read
  KeyFinder finder_;
};

}  // namespace latent
}  // namespace heddle::kernels::cuda
