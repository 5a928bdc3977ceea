// The scores that an indexer gives the keys that a row sees: of each head's dot product what is
// above zero, weighed and added up (kernels/selection.h).
//
// In tiles: a warp takes 32 keys of a row and keeps them in registers, 64 for 128 columns; all
// heads go past them, 16 at a time, as the left matrix. Sums over columns may be in any order, so
// that a lane's columns of a matrix instruction are eight neighbouring ones: 16 bytes of a key or a
// query. Limits at 64 heads of 128, for a row and a key: 256 bytes of the L2, 16,384 operations; a
// row's queries, 20 KiB of shared memory, are read once for each 32 keys, 640 bytes a key: at 128
// bytes a clock 5 clocks, where mma.sync makes 8,192 multiply-adds in 8.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/attention_widen.cuh"
#include "kernels/cuda/attention/select_rows.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kFewKeys = 128, kManyKeys = 512;  // of a block

// x, or zero if it is below; NaN stays.
HEDDLE_DEVICE float AboveZero(float x) { return x <= 0 ? 0.0f : x; }

// BlockX: a row. BlockY: keys_per_block of its keys. A thread has a key to itself.
template <typename T, typename Kv>
HEDDLE_KERNEL SelectScoresKernel(HEDDLE_PARAMS(SelectParams, p)) {
  AllowNext();
  const SelectArgs& a = p.args;
  const RowSight sight = SightOf(p.batch, p.batch_row + BlockX(), a.top_k);
  WaitForPrevious();
  const int begin = BlockY() * p.keys_per_block;
  if (!sight.chooses) return;
  const int dim = a.cache.head_dim;
  const T* q = a.q.row<T>(p.row + BlockX());
  const float* weights = a.weights.row<float>(p.row + BlockX());
  for (int place = begin + ThreadX(); place < begin + p.keys_per_block && place < sight.end;
       place += ThreadCount()) {
    const KeyPlace at = PlaceInContext(p.batch, a.cache, sight.seq, place, 0);
    const Kv* key = RowOfKey<Kv>(a.cache.keys, at);
    float score = 0;
    for (int h = 0; h < a.n_heads; ++h) {
      float dot = 0;
      for (int d = 0; d < dim; ++d) dot += ToFloat(q[h * dim + d]) * ToFloat(key[d]);
      score += weights[h] * AboveZero(dot);
    }
    p.scores[BlockX() * p.stride + place] = score * ScaleOfKey(a.cache.keys, at, Kv());
  }
}

constexpr int kDim = 128;  // narrower keys are filled up with zeros
constexpr int kSteps = kDim / 32;
constexpr int kQueryStride = kDim + 32;  // elements: two rows of 16-byte units in different banks
constexpr int kKeyTiles = 4;             // of 8 keys, for a warp

// Eight columns of a key.
template <typename Kv>
HEDDLE_DEVICE Vec16 KeyUnit(const Kv* from, Kv type) {
  if constexpr (sizeof(Kv) == 2) {
    return *reinterpret_cast<const Vec16*>(from);
  } else {
    return Widen(*reinterpret_cast<const Vec8*>(from), 1.0f, type);
  }
}

// Queries and weights of a row, [heads, kQueryStride] and [heads], in whole 16 heads.
template <typename Q>
struct RowMemory {
  Shared<Q> q;
  Shared<float> weights;
  HEDDLE_DEVICE RowMemory(SharedArena arena, int heads)
      : q(arena.Take<Q>(heads * kQueryStride)), weights(arena.Take<float>(heads)) {}
  static int SharedBytes(int heads) {
    return SharedBytesFor<Q>(heads * kQueryStride) + SharedBytesFor<float>(heads);
  }
};
HEDDLE_HOST_DEVICE int WholeHeads(int n_heads) { return (n_heads + 15) / 16 * 16; }

template <typename Q>
HEDDLE_DEVICE void LoadRow(const SelectParams& p, int heads, const RowMemory<Q>& memory) {
  constexpr int kUnits = kDim / 8;
  const SelectArgs& a = p.args;
  const BFloat16* q = a.q.row<BFloat16>(p.row + BlockX());
  for (int i = ThreadX(); i < heads * kUnits; i += kThreads) {
    const int head = i / kUnits, column = i % kUnits * 8;
    Vec16 unit = {};
    if (head < a.n_heads && column < a.cache.head_dim) {
      unit = *reinterpret_cast<const Vec16*>(q + head * a.cache.head_dim + column);
    }
    memory.q.SetAs(head * kQueryStride + column, UnitAs(unit, Q()));
  }
  const float* weights = a.weights.row<float>(p.row + BlockX());
  for (int i = ThreadX(); i < heads; i += kThreads) {
    memory.weights.Set(i, i < a.n_heads ? weights[i] : 0.0f);
  }
}

// The keys of a warp: lane 4g + t has columns 32 s + 8 t .. + 7 of keys 8 n + g.
struct WarpKeys {
  Vec16 unit[kKeyTiles][kSteps];
  float scale[kKeyTiles];
};
template <typename Kv>
HEDDLE_DEVICE WarpKeys LoadKeys(const SelectParams& p, const RowSight& sight, int first) {
  const KvCacheView& cache = p.args.cache;
  WarpKeys keys;
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    const int place = first + 8 * n + Lane() / 4;
    const bool is_there = place < sight.end;
    KeyPlace at = {0, 0};
    if (is_there) at = PlaceInContext(p.batch, cache, sight.seq, place, 0);
    keys.scale[n] = is_there ? ScaleOfKey(cache.keys, at, Kv()) : 0.0f;
    const Kv* key = RowOfKey<Kv>(cache.keys, at);
    HEDDLE_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const int column = 32 * s + 8 * (Lane() % 4);
      keys.unit[n][s] = Vec16{};
      if (is_there && column < cache.head_dim) keys.unit[n][s] = KeyUnit(key + column, Kv());
    }
  }
  return keys;
}

// Adds what 16 heads give the warp's keys: score[n][e] is of key 8 n + 2 t + e.
template <typename Q>
HEDDLE_DEVICE void AddHeads(const RowMemory<Q>& memory, int head, const WarpKeys& keys,
                            float (&score)[kKeyTiles][2]) {
  const int own = head + Lane() / 4;
  float dots[kKeyTiles][4] = {};
  HEDDLE_UNROLL
  for (int s = 0; s < kSteps; ++s) {
    const int at = own * kQueryStride + 32 * s + 8 * (Lane() % 4);
    const auto low = memory.q.template GetAs<Vec16>(at);
    const auto high = memory.q.template GetAs<Vec16>(at + 8 * kQueryStride);
    HEDDLE_UNROLL
    for (int j = 0; j < 4; j += 2) {
      const uint32_t q[4] = {low.word[j], high.word[j], low.word[j + 1], high.word[j + 1]};
      HEDDLE_UNROLL
      for (int n = 0; n < kKeyTiles; ++n) {
        Mma16816(dots[n], q, {keys.unit[n][s].word[j], keys.unit[n][s].word[j + 1]}, Q());
      }
    }
  }
  const float weight[2] = {memory.weights.Get(own), memory.weights.Get(own + 8)};
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) score[n][e % 2] += weight[e / 2] * AboveZero(dots[n][e]);
  }
}

// Adds up the lanes' heads, and stores.
HEDDLE_DEVICE void StoreScores(const SelectParams& p, const RowSight& sight, int first,
                               const WarpKeys& keys, float (&score)[kKeyTiles][2]) {
  float* to = p.scores + BlockX() * p.stride;
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 2; ++e) {
      float sum = score[n][e];
      HEDDLE_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) sum += ShuffleXor(sum, mask);
      const int key = 2 * (Lane() % 4) + e;
      const float scale = Shuffle(keys.scale[n], 4 * key);
      const int place = first + 8 * n + key;
      if (Lane() / 4 == n && place < sight.end) to[place] = sum * scale;
    }
  }
}

// BlockX: a row. BlockY: keys_per_block of its keys, in turns of 32 for each warp.
template <typename Kv>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 3) SelectTilesKernel(HEDDLE_PARAMS(SelectParams, p)) {
  using Q = typename Computed<Kv>::Type;
  constexpr int kWarpKeys = 8 * kKeyTiles;
  AllowNext();
  const RowSight sight = SightOf(p.batch, p.batch_row + BlockX(), p.args.top_k);
  WaitForPrevious();
  const int begin = BlockY() * p.keys_per_block;
  if (!sight.chooses || begin >= sight.end) return;
  const int heads = WholeHeads(p.args.n_heads);
  const RowMemory<Q> memory(SharedArena(), heads);
  LoadRow(p, heads, memory);
  SyncThreads();
  const int limit = begin + p.keys_per_block;
  const int end = limit < sight.end ? limit : sight.end;
  for (int first = begin + WarpIndex() * kWarpKeys; first < end; first += kWarps * kWarpKeys) {
    const WarpKeys keys = LoadKeys<Kv>(p, sight, first);
    float score[kKeyTiles][2] = {};
    for (int head = 0; head < heads; head += 16) AddHeads(memory, head, keys, score);
    StoreScores(p, sight, first, keys, score);
  }
}

bool ScoresInTiles(const SelectArgs& args, DType act) {
  const KvCacheView& cache = args.cache;
  const auto unit = static_cast<uintptr_t>(8 * KvElementBytes(cache.dtype));
  const bool keys_fit = cache.dtype != DType::kF32 && cache.head_dim <= kDim &&
                        cache.head_dim % 8 == 0 &&
                        reinterpret_cast<uintptr_t>(cache.keys) % unit == 0 &&
                        static_cast<uintptr_t>(cache.PageOffset(1)) % unit == 0;
  return keys_fit && act == DType::kBF16 && args.q.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0;
}

}  // namespace

Error LaunchSelectScores(const SelectParams& params, const SelectDevice& device, DType act,
                         Stream stream) {
  SelectParams p = params;
  const int64_t large_blocks = int64_t{p.n_rows} * CeilDiv(p.context, kManyKeys);
  p.keys_per_block = large_blocks < 4 * device.num_multiprocessors ? kFewKeys : kManyKeys;
  LaunchShape shape = {
      .grid_x = p.n_rows, .grid_y = CeilDiv(p.context, p.keys_per_block), .threads = kThreads};
  const int heads = WholeHeads(p.args.n_heads);
  const bool fits = RowMemory<BFloat16>::SharedBytes(heads) <= device.max_shared_bytes;
  if (fits && ScoresInTiles(p.args, act)) {
    return ForNarrowKvType(p.args.cache.dtype, [&]<typename Kv>(Kv) {
      shape.shared_bytes = RowMemory<typename Computed<Kv>::Type>::SharedBytes(heads);
      return Launch(SelectTilesKernel<Kv>, shape, stream, p);
    });
  }
  return ForActivation(act, [&]<typename T>(T) {
    return ForKvType(p.args.cache.dtype, [&]<typename Kv>(Kv) {
      return Launch(SelectScoresKernel<T, Kv>, shape, stream, p);
    });
  });
}

}  // namespace heddle::kernels::cuda
