// Shared memory of a block of attention_latent.cuh, and the copies of keys into it.
#pragma once

#include "kernels/cuda/attention/attention_flash.cuh"
#include "kernels/cuda/attention/attention_widen.cuh"

namespace heddle::kernels::cuda {
namespace latent {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kDim = kMaxAttentionHeadDim;  // narrower heads are filled up with zeros
constexpr int kUnit = 8;                    // elements in 16 bytes
constexpr int kUnits = kDim / kUnit;
constexpr int kStride = kDim + kUnit;  // elements of queries and keys
constexpr int kStages = 2;
constexpr int kRawStride = kDim + 16;  // of keys of 8 bits
constexpr int kRawUnits = kDim / 16;
constexpr int kWarpColumns = kDim / kWarps;
constexpr int kColumnTiles = kWarpColumns / 8;
constexpr int kValueKeys = 32;  // keys of a matrix load of values

template <int kRowsOf>
struct Shape {
  static constexpr int kRows = kRowsOf;
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kKeyWarps = kWarps / kRowTiles;  // warps that share rows
  static constexpr int kKeyTiles = kRows == 16 ? 1 : 2;
  static constexpr int kWarpKeys = 8 * kKeyTiles;
  static constexpr int kKeys = kKeyWarps * kWarpKeys;  // per stage
  static constexpr int kWeightStride = kKeys + kUnit;
  static constexpr int kStage = kKeys * kStride;
  static constexpr int kRawStage = kKeys * kRawStride;
  static_assert(kKeys % kValueKeys == 0 && kKeys * kUnits % kThreads == 0);
};

// Shared memory of a block.
template <typename S, typename Kv>
struct Memory {
  using Q = typename Computed<Kv>::Type;
  static constexpr bool kIsRaw = sizeof(Kv) == 1;
  static constexpr int kScales = flash::IsInt8(Kv()) ? kStages * S::kKeys : 0;
  static constexpr int kRaw = kIsRaw ? kStages * S::kRawStage : 0;
  static constexpr int kWideKeys = (kIsRaw ? 1 : kStages) * S::kStage;

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
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : offsets(arena.Take<int64_t>(kStages * S::kKeys)),
        scale_places(arena.Take<int64_t>(kScales)),
        scales(arena.Take<float>(kScales)),
        of_warps(arena.Take<float>(S::kKeyWarps * S::kRows)),
        shrink(arena.Take<float>(S::kRows)),
        max(arena.Take<float>(S::kRows)),
        weights(arena.Take<Q>(S::kRows * S::kWeightStride)),
        q(arena.Take<Q>(S::kRows * kStride)),
        raw(arena.Take<Kv>(kRaw)),
        keys(arena.Take<Q>(kWideKeys)) {}
  static constexpr int kSharedBytes =
      SharedBytesFor<int64_t>(kStages * S::kKeys) + SharedBytesFor<int64_t>(kScales) +
      SharedBytesFor<float>(kScales) + SharedBytesFor<float>(S::kKeyWarps * S::kRows) +
      2 * SharedBytesFor<float>(S::kRows) + SharedBytesFor<Q>(S::kRows * S::kWeightStride) +
      SharedBytesFor<Q>(S::kRows * kStride) + SharedBytesFor<Kv>(kRaw) +
      SharedBytesFor<Q>(kWideKeys);
};

// The keys of a tile as they pass through the block's two stages, in order.
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
  HEDDLE_DEVICE void LoadFirst() { Load(0); }
  // Returns the place in Memory::keys of the stage of keys from `first` on, which is ready for all
  // threads. No thread reads the stage before any more.
  HEDDLE_DEVICE int Next(int first) {
    const int place = stage_;
    stage_ = 1 - stage_;
    const bool more = first + S::kKeys < end_;
    if (more) Find(first + S::kKeys, stage_);
    CopyAsyncWait<0>();
    SyncThreads();
    if (more) Load(stage_);
    if constexpr (M::kIsRaw) {
      Convert(place);
      SyncThreads();
      return 0;
    } else {
      return place;
    }
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
    if constexpr (M::kIsRaw) {
      LoadRaw(stage);
    } else {
      LoadWide(stage);
    }
    CopyAsyncCommit();
  }
  HEDDLE_DEVICE void LoadWide(int stage) {
    const KvCacheView& cache = p_.args.cache;
    const uint8_t* keys = static_cast<const uint8_t*>(cache.keys);
    HEDDLE_UNROLL_BY(3)
    for (int i = 0; i < S::kKeys * kUnits / kThreads; ++i) {
      const int at = i * kThreads + ThreadX();
      const int key = at / kUnits;
      const int unit = at % kUnits;
      const int64_t offset = memory_.offsets.Get(stage * S::kKeys + key);
      const bool there = offset >= 0 && unit * kUnit < cache.head_dim;
      CopyAsync16(memory_.keys, stage * S::kStage + key * kStride + unit * kUnit,
                  keys + (there ? offset + 16 * unit : 0), there);
    }
  }
  HEDDLE_DEVICE void LoadRaw(int stage) {
    const KvCacheView& cache = p_.args.cache;
    const uint8_t* keys = static_cast<const uint8_t*>(cache.keys);
    HEDDLE_UNROLL_BY(3)
    for (int at = ThreadX(); at < S::kKeys * kRawUnits; at += kThreads) {
      const int key = at / kRawUnits;
      const int unit = at % kRawUnits;
      const int64_t offset = memory_.offsets.Get(stage * S::kKeys + key);
      const bool there = offset >= 0 && unit * 16 < cache.head_dim;
      CopyAsync16(memory_.raw, stage * S::kRawStage + key * kRawStride + unit * 16,
                  keys + (there ? offset + 16 * unit : 0), there);
    }
    if constexpr (M::kScales > 0) {
      if (ThreadX() >= S::kKeys) return;
      const int at = stage * S::kKeys + ThreadX();
      const bool there = memory_.offsets.Get(at) >= 0;
      CopyAsync4(memory_.scales, at, keys + (there ? memory_.scale_places.Get(at) : 0), there);
    }
  }
  // Makes the 16-bit keys of a stage, whose copies have arrived; of kInt8 without their scales.
  HEDDLE_DEVICE void Convert(int stage) {
    HEDDLE_UNROLL_BY(3)
    for (int i = 0; i < S::kKeys * kUnits / kThreads; ++i) {
      const int at = i * kThreads + ThreadX();
      const int key = at / kUnits;
      const int c = at % kUnits * kUnit;
      const auto codes =
          memory_.raw.template GetAs<Vec8>(stage * S::kRawStage + key * kRawStride + c);
      memory_.keys.SetAs(key * kStride + c, Widen(codes, 1.0f, Kv()));
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
