// Shared memory of a block of attention_hopper.cuh, the tiles that it takes, and its producer: the
// warp that has keys and values copied, a page at a time.
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/primitives_hopper.cuh"

namespace heddle::kernels::cuda {

struct HopperAttentionParams {
  AttentionParams attention;
  // Maps of lines of head_dim elements, with boxes of one page. Pages made of latents have the
  // heads of a position side by side.
  TensorMap keys;
  TensorMap values;
  // The page of the copy in F16 that has a span's values; caches of F8 alone have such copies.
  const int32_t* value_page = nullptr;
};

namespace hopper {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kGroupRows = 64;
constexpr int kKeys = 128;  // of a stage
constexpr int kStages = 2;
constexpr int kKeyTiles = kKeys / 8;
constexpr int kNoKey = 0x7FFFFFFF;
static_assert(kConsumers * kGroupRows == kHopperTileRows);

// Named barriers. kTurn + c: consumer c may multiply. kRowsThere + c: its queries are in place.
constexpr int kTurn = 1;
constexpr int kRowsThere = 3;

HEDDLE_DEVICE int Consumer() { return ThreadX() / kGroupThreads - 1; }
// The row within the tile.
HEDDLE_DEVICE int RowOfThread(int h) { return (WarpIndex() - 4) * 16 + Lane() / 4 + 8 * h; }

// Keys of 192 columns are those made of latents, whose values have 128 (attention_expand.cu).
constexpr bool IsExpanded(int dim) { return dim == kExpandedKeyDim; }
constexpr int ValueDim(int dim) { return IsExpanded(dim) ? kExpandedValueDim : dim; }

// Values lie across their products, for which tiles have 16 bits.
template <typename Kv>
struct ValueTraits {
  using Type = Kv;
};
template <>
struct ValueTraits<Float8> {
  using Type = Half;
};
template <typename Kv>
using ValueOf = typename ValueTraits<Kv>::Type;
template <typename Kv>
constexpr bool kHasScales = sizeof(Kv) == 1;  // queries are codes

template <typename Kv, int kDim>
struct Memory {
  static constexpr int kQueries = kGroupRows * kDim;  // elements of a consumer
  static constexpr int kKeyStage = kKeys * kDim;
  static constexpr int kValueStage = kKeys * ValueDim(kDim);
  static constexpr int kScales = kHasScales<Kv> ? kConsumers * kGroupRows : 0;
  // [consumer or stage, lines of a row, rows, elements of a line], swizzled; patterns begin at
  // multiples of 1024 bytes, as all these are.
  Shared<Kv> q, k;
  Shared<ValueOf<Kv>> v;
  Shared<int32_t> keys;    // [kStages, kKeys] the key of a column, or kNoKey
  Shared<int32_t> bounds;  // [kStages, 2] the first key; the last, or kNoKey if any column has none
  Shared<float> scales;    // [kScales] of the rows of queries
  BlockBarriers barriers;
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : q(arena.Take<Kv>(kConsumers * kQueries)),
        k(arena.Take<Kv>(kStages * kKeyStage)),
        v(arena.Take<ValueOf<Kv>>(kStages * kValueStage)),
        keys(arena.Take<int32_t>(kStages * kKeys)),
        bounds(arena.Take<int32_t>(kStages * 2)),
        scales(arena.Take<float>(kScales)),
        barriers(arena.Take<uint64_t>(kBarriers)) {}
  static constexpr int kBarriers = 4 * kStages + 1;
  static constexpr int kSharedBytes =
      SharedBytesFor<Kv>(kConsumers * kQueries) + SharedBytesFor<Kv>(kStages * kKeyStage) +
      SharedBytesFor<ValueOf<Kv>>(kStages * kValueStage) +
      SharedBytesFor<int32_t>(kStages * kKeys) + SharedBytesFor<int32_t>(kStages * 2) +
      SharedBytesFor<float>(kScales) + SharedBytesFor<uint64_t>(kBarriers);
};

// Indices into Memory::barriers; stages follow each other.
constexpr int kKeysFull = 0;
constexpr int kKeysEmpty = kStages;
constexpr int kValuesFull = 2 * kStages;
constexpr int kValuesEmpty = 3 * kStages;
constexpr int kValuesRaw = 4 * kStages;  // copied, but with columns to clear

// A stage, and the parity of its use.
struct Turn {
  int count = 0;
  HEDDLE_DEVICE int stage() const { return count % kStages; }
  HEDDLE_DEVICE uint32_t parity() const { return count / kStages & 1; }
};

// The tiles of this block: it goes forth and back over all, so that each block has long and short
// ones.
class Items {
 public:
  HEDDLE_DEVICE explicit Items(const AttentionParams& p)
      : total_(p.n_tiles * p.args.cache.n_kv_heads) {}
  HEDDLE_DEVICE bool Next(int& item) {
    const int within = round_ % 2 == 0 ? BlockX() : GridX() - 1 - BlockX();
    item = round_ * GridX() + within;
    ++round_;
    return item < total_;
  }

 private:
  int total_;
  int round_ = 0;
};

// An item, and the spans that hold its keys, kKeys / page_tokens per stage.
struct Walk {
  AttentionTile tile;
  SequenceView s;
  KeyRange keys;
  int first_span, last_span;
  int stages;

  HEDDLE_DEVICE Walk(const AttentionParams& p, int item, bool may_be_tree)
      : tile(p.tiles[item / p.args.cache.n_kv_heads]),
        s(p, tile, item % p.args.cache.n_kv_heads, may_be_tree),
        keys(p.batch, s, tile, kHopperTileRows),
        first_span(SpanOf(p, keys.begin)),
        last_span(SpanOf(p, keys.end - 1)),
        stages((last_span - first_span) / (kKeys / p.args.cache.page_tokens) + 1) {}

 private:
  // No search is needed if all spans before it are full.
  HEDDLE_DEVICE int SpanOf(const AttentionParams& p, int key) const {
    const int guess = p.batch.span_begin[s.seq] + key / p.args.cache.page_tokens;
    const int first = p.batch.span_first[guess];
    if (first <= key && key < first + p.batch.span_tokens[guess]) return guess;
    return FindSpan(p.batch, s.seq, key);
  }
};

// The keys of columns lane + 32 i of a stage, for i = 0..3, and what the consumers need to know of
// all columns.
struct Columns {
  int32_t key[kKeys / 32];
  bool dense;  // every column has a key
};

HEDDLE_DEVICE Columns FindColumns(const AttentionParams& p, const Walk& walk, int first_span) {
  Columns columns;
  bool dense = true;
  HEDDLE_UNROLL
  for (int i = 0; i < kKeys / 32; ++i) {
    const int column = Lane() + 32 * i;
    const int span = first_span + column / p.args.cache.page_tokens;
    const int within = column % p.args.cache.page_tokens;
    const bool there = span <= walk.last_span && within < p.batch.span_tokens[span];
    columns.key[i] = there ? p.batch.span_first[span] + within : kNoKey;
    dense = dense && there;
  }
  columns.dense = Ballot(dense) == kFullMask;
  return columns;
}

template <typename M>
HEDDLE_DEVICE void PublishColumns(const M& memory, int stage, const Columns& columns) {
  HEDDLE_UNROLL
  for (int i = 0; i < kKeys / 32; ++i) {
    memory.keys.Set(stage * kKeys + Lane() + 32 * i, columns.key[i]);
  }
  if (Lane() == 0) memory.bounds.Set(2 * stage, columns.key[0]);
  if (Lane() == 31) {
    memory.bounds.Set(2 * stage + 1, columns.dense ? columns.key[kKeys / 32 - 1] : kNoKey);
  }
  SyncWarp();
}

// Where the lines of a page are: in the cache; in a copy of adjacent pages; in a matrix with the
// heads of a position side by side.
enum class PageLines : uint8_t { kCache, kCopy, kSideBySide };

// Starts the copies of a stage's pages, those that `page_of` has for its spans; barrier `full` ends
// its phase when they have arrived.
template <typename Kv, int kDim, PageLines kFrom>
HEDDLE_DEVICE void CopyStage(const AttentionParams& p, const TensorMap& map, const int32_t* page_of,
                             const Walk& walk, int first_span, Shared<Kv> to, int at,
                             BlockBarriers barriers, int full) {
  constexpr int kLine = 128 / static_cast<int>(sizeof(Kv));  // elements
  constexpr int kLines = kDim / kLine;
  const KvCacheView& cache = p.args.cache;
  const int left = walk.last_span - first_span + 1;
  const int room = kKeys / cache.page_tokens;
  const int pages = left < room ? left : room;
  if (Lane() == 0) {
    BarrierArriveExpecting(barriers, full,
                           pages * cache.page_tokens * kDim * static_cast<int>(sizeof(Kv)));
  }
  SyncWarp();
  for (int i = Lane(); i < pages * kLines; i += 32) {
    const int page = i / kLines;
    const int line = i % kLines;
    const int where = at + (line * kKeys + page * cache.page_tokens) * kLine;
    const int32_t stored = page_of[first_span + page];
    if constexpr (kFrom == PageLines::kSideBySide) {
      CopyTile(to, where, map, walk.s.kv_head * kDim + line * kLine, stored * cache.page_tokens,
               barriers, full);
    } else if constexpr (kFrom == PageLines::kCopy) {
      const int row = (stored * cache.n_kv_heads + walk.s.kv_head) * cache.page_tokens;
      CopyTile(to, where, map, line * kLine, row, barriers, full);
    } else {
      const int64_t row = cache.PageOffset(stored) / (kDim * static_cast<int>(sizeof(Kv))) +
                          static_cast<int64_t>(walk.s.kv_head) * cache.page_tokens;
      CopyTile(to, where, map, line * kLine, static_cast<int>(row), barriers, full);
    }
  }
}

// Clears the values of columns without a key. A line covers all banks, so lanes begin at different
// units of it.
template <typename Kv, int kDim>
HEDDLE_DEVICE void ClearColumns(const Columns& columns, Shared<Kv> values, int at) {
  HEDDLE_UNROLL
  for (int i = 0; i < kKeys / 32; ++i) {
    if (columns.key[i] != kNoKey) continue;
    HEDDLE_UNROLL_BY(1)  // otherwise their places would be kept in registers that the producer
                         // lacks
    for (int unit = 0; unit < kDim / 8; ++unit) {
      const int line = (unit / 8 * kKeys + Lane() + 32 * i) * kLineElements;
      values.SetAs(at + line + (unit + Lane()) % 8 * 8, Vec16{});
    }
  }
  FenceProxies();
  SyncWarp();
}

template <typename Kv, int kDim, bool kTrees>
HEDDLE_DEVICE void Produce(const HopperAttentionParams& params, const Memory<Kv, kDim>& memory) {
  using M = Memory<Kv, kDim>;
  constexpr int kValues = ValueDim(kDim);
  constexpr auto kKeysFrom = IsExpanded(kDim) ? PageLines::kSideBySide : PageLines::kCache;
  constexpr auto kValuesFrom = kHasScales<Kv> ? PageLines::kCopy : kKeysFrom;
  const AttentionParams& p = params.attention;
  const int32_t* value_page = kHasScales<Kv> ? params.value_page : p.batch.span_page;
  const int room = kKeys / p.args.cache.page_tokens;
  Turn turn;
  uint32_t raw_parity = 0;
  Items items(p);
  for (int item; items.Next(item);) {
    const Walk walk(p, item, kTrees);
    for (int j = 0; j < walk.stages; ++j, ++turn.count) {
      const int stage = turn.stage();
      const int values_at = stage * M::kValueStage;
      const int first_span = walk.first_span + j * room;
      const Columns columns = FindColumns(p, walk, first_span);
      BarrierWait(memory.barriers, kKeysEmpty + stage, turn.parity() ^ 1);
      PublishColumns(memory, stage, columns);
      CopyStage<Kv, kDim, kKeysFrom>(p, params.keys, p.batch.span_page, walk, first_span, memory.k,
                                     stage * M::kKeyStage, memory.barriers, kKeysFull + stage);
      BarrierWait(memory.barriers, kValuesEmpty + stage, turn.parity() ^ 1);
      CopyStage<ValueOf<Kv>, kValues, kValuesFrom>(
          p, params.values, value_page, walk, first_span, memory.v, values_at, memory.barriers,
          columns.dense ? kValuesFull + stage : kValuesRaw);
      if (columns.dense) continue;
      BarrierWait(memory.barriers, kValuesRaw, raw_parity);
      raw_parity ^= 1;
      ClearColumns<ValueOf<Kv>, kValues>(columns, memory.v, values_at);
      if (Lane() == 0) BarrierArrive(memory.barriers, kValuesFull + stage);
    }
  }
}

}  // namespace hopper
}  // namespace heddle::kernels::cuda
