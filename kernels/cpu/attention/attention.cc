#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/registers_in_use.h"
#include "kernels/cpu/span_positions.h"
#include "kernels/kv_element.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kContextGrain % kChunkTokens == 0);

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A tile: queries [first, first + count) among the (row, head of the group) pairs of one sequence
// and KV head, numbered row by row.
struct Tile {
  int32_t seq;
  int32_t kv_head;
  int32_t first;
  int32_t count;
};

// The part of one chunk of its context that a tile reads: places [begin, end) of a run, counted
// from the run's first. Chunks begin at multiples of kChunkTokens of each run, and are numbered
// over all runs of the sequence. The default: nothing.
struct Part {
  const ContextRun* run = nullptr;
  int32_t chunk = 0;
  int32_t begin = 0;
  int32_t end = 0;

  bool is_empty() const { return begin >= end; }
};

int32_t ChunksOf(const ContextRun& run) { return (run.length() + kChunkTokens - 1) / kChunkTokens; }

// Operands and results of one tile in a thread's memory.
struct TileMemory {
  float* acc;    // [kMaxQueries, padded_dim] for a chunk
  float* total;  // [kMaxQueries, padded_dim]
  float* scratch;
  const float* queries[kMaxQueries];  // as the step has them
  float* own;                         // [kMaxQueries, padded_dim] rotated further, if any are, or
                                      // with zeros beside half of a query (half_keys)
  const float* of_run[kMaxQueries];   // one or the other
  float max[kMaxQueries];
  float sum[kMaxQueries];
  float total_max[kMaxQueries];
  float total_sum[kMaxQueries];
  int32_t lower[kMaxQueries];
  int32_t upper[kMaxQueries];
  uint64_t tree[kMaxQueries];
  const float* bias[kMaxQueries];
  KeyRun runs[kChunkTokens];
  KeyRun ahead[kMaxBlocksAhead * kBlockTokens];
  int32_t ahead_tokens;
  TileRegisters* registers;
};

class AttentionCall {
 public:
  AttentionCall(const HostBatch& batch, const AttentionArgs& args, const AttentionKernels& kernels,
                AttentionScratch& scratch)
      : batch_(batch), args_(args), kernels_(kernels), scratch_(scratch) {
    const KvCacheView& cache = args.cache;
    HEDDLE_CHECK(args.n_heads % cache.n_kv_heads == 0, "attention: heads are not whole groups");
    HEDDLE_CHECK(args.q.rows == batch.n_tokens(), "attention: q has not the batch's rows");
    HEDDLE_CHECK(args.bias.table == nullptr || args.both_ways, "attention: biases of one way");
    HEDDLE_CHECK(!args.half_keys || args.cache.head_dim % 2 == 0, "attention: odd halves");
    static_assert(DistanceBias::kPadding >= kBlockTokens);
    group_ = args.n_heads / cache.n_kv_heads;
    padded_dim_ = (cache.head_dim + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
    CountTiles();
    PlaceSpans(batch, &scratch_.span_position);
    scratch_.runs.Find(batch, args);
    HEDDLE_CHECK(!args.half_keys || !scratch_.runs.has_turns(), "attention: halves that turn");
  }

  void Run(ThreadPool& pool) {
    ReserveThreads(pool.num_threads());
    const int64_t tiles = num_tiles();
    int64_t chunks = 1;
    for (int32_t s = 0; s < batch_.n_seqs(); ++s) {
      int64_t of_sequence = 0;
      for (const ContextRun& run : scratch_.runs.Of(s)) of_sequence += ChunksOf(run);
      chunks = std::max(chunks, of_sequence);
    }
    // With enough tiles all threads finish within a fraction of a tile of each other.
    bool split = chunks > 1 && tiles < 3 * pool.num_threads() && pool.num_threads() > 1;
    if (split) {
      RunSplit(pool, tiles, chunks);
    } else {
      pool.ForRange(tiles, TileCost(), [&](int64_t begin, int64_t end, int32_t thread) {
        RegistersInUse registers(kernels_.release_tiles);
        for (int64_t i = begin; i < end; ++i) RunTile(i, thread, registers);
      });
    }
  }

 private:
  int64_t num_tiles() const { return scratch_.tile_begin.back(); }
  int32_t RowsOf(int32_t seq) const { return batch_.q_begin[seq + 1] - batch_.q_begin[seq]; }
  int64_t TilesPerHead(int32_t seq) const {
    return (static_cast<int64_t>(RowsOf(seq)) * group_ + kMaxQueries - 1) / kMaxQueries;
  }

  void CountTiles() {
    scratch_.tile_begin.assign(1, 0);
    for (int32_t s = 0; s < batch_.n_seqs(); ++s) {
      scratch_.tile_begin.push_back(scratch_.tile_begin.back() +
                                    args_.cache.n_kv_heads * TilesPerHead(s));
    }
  }

  void ReserveThreads(int32_t num_threads) {
    if (static_cast<int32_t>(scratch_.threads.size()) < num_threads) {
      scratch_.threads.resize(static_cast<size_t>(num_threads));
    }
    for (Scratch& thread : scratch_.threads) thread.Get(ThreadBytes());
  }

  int64_t ThreadBytes() const {
    int64_t floats =
        OwnFloats() + int64_t{2} * kMaxQueries * padded_dim_ + AttendScratchFloats(padded_dim_);
    return floats * 4 + static_cast<int64_t>(sizeof(TileMemory)) + kThreadsApart;
  }

  int64_t OwnFloats() const {
    const bool has_own = scratch_.runs.has_turns() || args_.half_keys;
    return has_own ? int64_t{kMaxQueries} * padded_dim_ : 0;
  }

  TileMemory& Memory(int32_t thread, TileRegisters& registers) {
    auto* floats = static_cast<float*>(scratch_.threads[static_cast<size_t>(thread)].Get(0));
    int64_t rows = static_cast<int64_t>(kMaxQueries) * padded_dim_;
    int64_t scratch_floats = AttendScratchFloats(padded_dim_);
    auto* memory = new (floats + 2 * rows + scratch_floats + OwnFloats()) TileMemory;
    memory->acc = floats;
    memory->total = floats + rows;
    memory->scratch = floats + 2 * rows;
    memory->own = floats + 2 * rows + scratch_floats;
    memory->registers = &registers;
    return *memory;
  }

  double TileCost() const {
    int64_t longest = 0;
    for (int32_t length : batch_.context_len) longest = std::max<int64_t>(longest, length);
    int32_t queries = std::min<int32_t>(kMaxQueries, batch_.n_tokens() * group_);
    return kernels_.ns_per_score * static_cast<double>(longest * queries) * padded_dim_ / 64.0;
  }

  Tile TileAt(int64_t index) const {
    const std::vector<int64_t>& begin = scratch_.tile_begin;
    auto seq = static_cast<int32_t>(std::upper_bound(begin.begin(), begin.end(), index) -
                                    begin.begin() - 1);
    int64_t local = index - begin[static_cast<size_t>(seq)];
    Tile tile{};
    tile.seq = seq;
    tile.kv_head = static_cast<int32_t>(local / TilesPerHead(seq));
    tile.first = static_cast<int32_t>(local % TilesPerHead(seq)) * kMaxQueries;
    tile.count = std::min(kMaxQueries, RowsOf(seq) * group_ - tile.first);
    return tile;
  }

  bool SeesByTree(int32_t seq) const { return !args_.in_order && batch_.IsTree(seq); }
  // Query q of the tile sees places [LowerOf, UpperOf) of the run; in a tree, those of them that
  // are in its mask.
  int32_t UpperOf(const Tile& tile, const ContextRun& run, int32_t q) const {
    if (SeesByTree(tile.seq)) return run.length();
    const int32_t upper = FirstRowOf(tile.seq) + 1 + (tile.first + q) / group_ - run.begin;
    if (!args_.both_ways) return std::min(upper, run.length());
    if (args_.window <= 0) return run.length();
    return std::min(upper - 1 + args_.window, run.length());
  }
  int32_t PositionOf(const Tile& tile, int32_t q) const {
    return batch_.positions[static_cast<size_t>(RowOf(tile, q))];
  }
  // Positions that query q sees behind its own, itself included, in a run.
  int32_t WindowOf(const Tile& tile, const ContextRun& run, int32_t q) const {
    if (!args_.in_chunks) return args_.window;
    return (PositionOf(tile, q) + run.turn) % args_.window + 1;
  }
  // The rows of a query's tree that are in its chunk.
  uint64_t ChunkOfTree(const Tile& tile, int32_t q) const {
    const auto first = static_cast<size_t>(batch_.q_begin[tile.seq]);
    const int32_t chunk = PositionOf(tile, q) / args_.window;
    uint64_t rows = 0;
    for (int32_t i = 0; i < std::min(RowsOf(tile.seq), 64); ++i) {
      const bool is_in = batch_.positions[first + static_cast<size_t>(i)] / args_.window == chunk;
      rows |= uint64_t{is_in} << i;
    }
    return rows;
  }
  int32_t LowerOf(const Tile& tile, const ContextRun& run, int32_t q) const {
    if (args_.window <= 0) return 0;
    const int32_t window = WindowOf(tile, run, q);
    if (scratch_.runs.CountsPositions(tile.seq)) {
      const int32_t own = PositionOf(tile, q) + run.turn - run.position;
      return std::clamp(own + 1 - window, 0, run.length());
    }
    if (!SeesByTree(tile.seq)) {
      const int32_t own = FirstRowOf(tile.seq) + (tile.first + q) / group_;
      return std::max(0, own + 1 - window);
    }
    const int32_t depth =
        PositionOf(tile, q) - batch_.positions[static_cast<size_t>(batch_.q_begin[tile.seq])];
    return std::clamp(FirstRowOf(tile.seq) + depth + 1 - window, 0, FirstRowOf(tile.seq));
  }
  // The place of a sequence's first row in its context.
  int32_t FirstRowOf(int32_t seq) const { return batch_.context_len[seq] - RowsOf(seq); }
  int64_t RowOf(const Tile& tile, int32_t q) const {
    return batch_.q_begin[tile.seq] + (tile.first + q) / group_;
  }
  int32_t HeadOf(const Tile& tile, int32_t q) const {
    return tile.kv_head * group_ + (tile.first + q) % group_;
  }

  void FindQueries(const Tile& tile, TileMemory& memory) const {
    for (int32_t q = 0; q < tile.count; ++q) {
      memory.queries[q] = QueryOf(tile, q, memory);
      if (batch_.tree_mask.empty()) continue;
      memory.tree[q] = batch_.tree_mask[static_cast<size_t>(RowOf(tile, q))];
      if (args_.in_chunks && SeesByTree(tile.seq)) memory.tree[q] &= ChunkOfTree(tile, q);
    }
  }

  // The row of head_dim elements of a query.
  const float* QueryOf(const Tile& tile, int32_t q, TileMemory& memory) const {
    const int32_t dim = args_.cache.head_dim;
    const int32_t head = HeadOf(tile, q);
    const auto* const row = args_.q.row<float>(RowOf(tile, q));
    if (!args_.half_keys) return row + int64_t{head} * dim;
    float* const whole = memory.own + int64_t{q} * padded_dim_;
    const int32_t half = dim / 2;
    std::fill_n(whole, dim, 0.0f);
    std::copy_n(row + int64_t{head} * half, half, whole + head % 2 * half);
    return whole;
  }

  // Notes what the queries see of a run, and rotates them for it.
  void EnterRun(const Tile& tile, const ContextRun& run, TileMemory& memory) const {
    for (int32_t q = 0; q < tile.count; ++q) {
      memory.lower[q] = LowerOf(tile, run, q);
      memory.upper[q] = UpperOf(tile, run, q);
      memory.of_run[q] = memory.queries[q];
      memory.bias[q] = BiasOf(tile, run, q);
      if (run.angles < 0) continue;
      float* const turned = memory.own + int64_t{q} * padded_dim_;
      scratch_.runs.Turn(run, *args_.rotation, memory.queries[q], args_.cache.head_dim, turned);
      memory.of_run[q] = turned;
    }
  }

  // The bias of query q's score at a place of the run; nullptr: nothing.
  const float* BiasOf(const Tile& tile, const ContextRun& run, int32_t q) const {
    const DistanceBias& bias = args_.bias;
    if (bias.table == nullptr) return nullptr;
    const int32_t own = FirstRowOf(tile.seq) + (tile.first + q) / group_;
    return bias.table + HeadOf(tile, q) * bias.stride() + bias.reach - own + run.begin;
  }

  // The keys at `count` places from `offset` on of span `i`.
  KeyRun RunAt(int32_t i, int32_t offset, int32_t count, int32_t kv_head) const {
    const KvCacheView& cache = args_.cache;
    const int64_t slot = int64_t{batch_.span_page[i]} * cache.page_tokens + offset;
    const int64_t row = RowOffset(cache, slot, kv_head);
    const int64_t scales = ScaleOffset(cache, slot, kv_head);
    const auto* keys = static_cast<const char*>(cache.keys);
    const auto* values = static_cast<const char*>(cache.values);
    return {keys + row, values + row, keys + scales, values + scales, count};
  }

  // The same as FindRuns for places [begin, end) of a list.
  void FindChosen(const Tile& tile, const int32_t* places, int32_t begin, int32_t end,
                  KeyRun* runs) const {
    const auto spans = scratch_.span_position.begin();
    auto i = static_cast<int32_t>(std::upper_bound(spans + scratch_.chosen.SpanBegin(tile.seq),
                                                   spans + scratch_.chosen.SpanEnd(tile.seq),
                                                   places[begin]) -
                                  spans - 1);
    while (begin < end) {
      while (places[begin] >=
             scratch_.span_position[static_cast<size_t>(i)] + batch_.span_tokens[i]) {
        ++i;
      }
      const int32_t offset = places[begin] - scratch_.span_position[static_cast<size_t>(i)];
      int32_t count = 1;
      while (begin + count < end && places[begin + count] == places[begin] + count &&
             offset + count < batch_.span_tokens[i]) {
        ++count;
      }
      *runs++ = RunAt(i, offset, count, tile.kv_head);
      begin += count;
    }
  }

  // Finds the runs of keys at places [begin, end) of a sequence; there is at most one per place.
  void FindRuns(const Tile& tile, int32_t begin, int32_t end, KeyRun* runs) const {
    if (args_.chosen.rows != nullptr) {
      const int32_t* const places = scratch_.chosen.PlacesOf(tile.seq);
      if (places != nullptr && begin < end) return FindChosen(tile, places, begin, end, runs);
    }
    const auto spans = scratch_.span_position.begin();
    auto i = static_cast<int32_t>(std::upper_bound(spans + batch_.span_begin[tile.seq],
                                                   spans + batch_.span_begin[tile.seq + 1], begin) -
                                  spans - 1);
    for (; begin < end; ++i) {
      const int32_t offset = begin - scratch_.span_position[static_cast<size_t>(i)];
      const int32_t count = std::min(end - begin, batch_.span_tokens[i] - offset);
      *runs++ = RunAt(i, offset, count, tile.kv_head);
      begin += count;
    }
  }

  // The first part from chunk `chunk` on of which the tile reads anything.
  Part PartFrom(const Tile& tile, int32_t chunk) const {
    int32_t before = 0;  // chunks of earlier runs
    for (const ContextRun& run : scratch_.runs.Of(tile.seq)) {
      const int32_t lower = LowerOf(tile, run, 0);
      const int32_t upper = UpperOf(tile, run, tile.count - 1);
      const int32_t at = std::max(chunk - before, lower / kChunkTokens);
      if (lower < upper && at * kChunkTokens < upper) {
        return {&run, before + at, std::max(at * kChunkTokens, lower / kBlockTokens * kBlockTokens),
                std::min((at + 1) * kChunkTokens, upper)};
      }
      before += ChunksOf(run);
    }
    return {};
  }
  // The part of that very chunk.
  Part PartAt(const Tile& tile, int32_t chunk) const {
    const Part part = PartFrom(tile, chunk);
    return part.chunk == chunk ? part : Part{};
  }

  // Notes the first blocks of the part that the thread will compute next.
  void LookAhead(const Tile& tile, const Part& part, TileMemory& memory) const {
    memory.ahead_tokens =
        std::max(0, std::min(part.end - part.begin, kMaxBlocksAhead * kBlockTokens));
    if (part.is_empty()) return;
    const int32_t begin = part.run->begin + part.begin;
    FindRuns(tile, begin, begin + memory.ahead_tokens, memory.ahead);
  }

  // Computes the results of the tile's queries over a part of the context. `acc` has room for
  // kMaxQueries.
  void RunPart(const Tile& tile, const Part& part, TileMemory& memory, float* max, float* sum,
               float* acc) const {
    std::fill(max, max + tile.count, kNothing);
    std::fill(sum, sum + tile.count, 0.0f);
    std::fill(acc, acc + static_cast<int64_t>(tile.count) * padded_dim_, 0.0f);
    if (part.is_empty()) return;
    FindRuns(tile, part.run->begin + part.begin, part.run->begin + part.end, memory.runs);
    AttendArgs attend{};
    attend.type = KvTypeOf(args_.cache.dtype);
    attend.runs = memory.runs;
    attend.begin = part.begin;
    attend.end = part.end;
    attend.ahead = memory.ahead;
    attend.ahead_tokens = memory.ahead_tokens;
    attend.head_dim = args_.cache.head_dim;
    attend.padded_dim = padded_dim_;
    attend.num_queries = tile.count;
    attend.queries = memory.of_run;
    attend.scale = args_.scale;
    attend.lower = memory.lower;
    attend.upper = memory.upper;
    attend.tree = SeesByTree(tile.seq) ? memory.tree : nullptr;
    attend.tree_begin = FirstRowOf(tile.seq);
    attend.softcap = args_.softcap;
    attend.bias = args_.bias.table == nullptr ? nullptr : memory.bias;
    attend.max = max;
    attend.sum = sum;
    attend.acc = acc;
    attend.scratch = memory.scratch;
    attend.registers = memory.registers;
    kernels_.attend(attend);
  }

  void StartTotal(const Tile& tile, TileMemory& memory) const {
    std::fill(memory.total_max, memory.total_max + tile.count, kNothing);
    std::fill(memory.total_sum, memory.total_sum + tile.count, 0.0f);
    std::fill(memory.total, memory.total + static_cast<int64_t>(tile.count) * padded_dim_, 0.0f);
  }

  void MergeChunk(const Tile& tile, const float* max, const float* sum, const float* acc,
                  TileMemory& memory) const {
    for (int32_t q = 0; q < tile.count; ++q) {
      int64_t at = static_cast<int64_t>(q) * padded_dim_;
      kernels_.merge(max[q], sum[q], acc + at, padded_dim_, memory.total_max + q,
                     memory.total_sum + q, memory.total + at);
    }
  }

  void Finish(const Tile& tile, const TileMemory& memory) const {
    int32_t dim = args_.cache.head_dim;
    for (int32_t q = 0; q < tile.count; ++q) {
      int32_t head = HeadOf(tile, q);
      float sink = args_.sinks ? args_.sinks[head] : kNothing;
      kernels_.finish(memory.total_max[q], memory.total_sum[q],
                      memory.total + static_cast<int64_t>(q) * padded_dim_, dim, sink,
                      args_.out.row<float>(RowOf(tile, q)) + head * dim,
                      args_.lse ? args_.lse + RowOf(tile, q) * args_.n_heads + head : nullptr);
    }
  }

  void RunTile(int64_t index, int32_t thread, TileRegisters& registers) {
    const Tile tile = TileAt(index);
    TileMemory& memory = Memory(thread, registers);
    FindQueries(tile, memory);
    const ContextRun* run = nullptr;
    for (Part part = PartFrom(tile, 0); !part.is_empty();) {
      const Part next = PartFrom(tile, part.chunk + 1);
      const bool has_tile = next.is_empty() && index + 1 < num_tiles();
      const Tile ahead = has_tile ? TileAt(index + 1) : tile;
      LookAhead(ahead, has_tile ? PartFrom(ahead, 0) : next, memory);
      const bool is_first = run == nullptr;
      if (part.run != run) EnterRun(tile, *part.run, memory);
      run = part.run;
      if (is_first) {  // the first part is the total so far
        RunPart(tile, part, memory, memory.total_max, memory.total_sum, memory.total);
      } else {
        RunPart(tile, part, memory, memory.max, memory.sum, memory.acc);
        MergeChunk(tile, memory.max, memory.sum, memory.acc, memory);
      }
      part = next;
    }
    Finish(tile, memory);
  }

  // Computes the chunks of all tiles in parallel, then merges them in order of position: the same
  // arithmetic as in RunTile.
  void RunSplit(ThreadPool& pool, int64_t tiles, int64_t chunks) {
    int64_t part_floats = kMaxQueries * static_cast<int64_t>(padded_dim_ + 2);
    auto* parts = static_cast<float*>(scratch_.parts.Get(tiles * chunks * part_floats * 4));
    const double cost = kernels_.ns_per_score * kChunkTokens;
    pool.ForEach(tiles * chunks, cost, [&](int64_t i, int32_t thread) {
      const Tile tile = TileAt(i / chunks);
      RegistersInUse registers(kernels_.release_tiles);
      TileMemory& memory = Memory(thread, registers);
      const Part part = PartAt(tile, static_cast<int32_t>(i % chunks));
      FindQueries(tile, memory);
      if (!part.is_empty()) EnterRun(tile, *part.run, memory);
      const bool has_next = i + 1 < tiles * chunks;
      const Tile next = has_next ? TileAt((i + 1) / chunks) : tile;
      LookAhead(next, has_next ? PartAt(next, static_cast<int32_t>((i + 1) % chunks)) : Part{},
                memory);
      float* at = parts + i * part_floats;
      RunPart(tile, part, memory, at, at + kMaxQueries, at + 2 * kMaxQueries);
    });
    pool.ForEach(tiles, static_cast<double>(chunks * 100), [&](int64_t i, int32_t thread) {
      Tile tile = TileAt(i);
      TileRegisters none;
      TileMemory& memory = Memory(thread, none);
      StartTotal(tile, memory);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const float* part = parts + (i * chunks + chunk) * part_floats;
        MergeChunk(tile, part, part + kMaxQueries, part + 2 * kMaxQueries, memory);
      }
      Finish(tile, memory);
    });
  }

  const HostBatch& batch_;
  const AttentionArgs& args_;
  const AttentionKernels& kernels_;
  AttentionScratch& scratch_;
  int32_t group_ = 1;
  int32_t padded_dim_ = 0;
};

}  // namespace

KvType KvTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return KvType::kF32;
    case DType::kF16:
      return KvType::kF16;
    case DType::kBF16:
      return KvType::kBF16;
    case DType::kInt8:
      return KvType::kInt8;
    default:
      HEDDLE_CHECK(dtype == DType::kF8E4M3, "attention: no type of the KV cache");
      return KvType::kF8E4M3;
  }
}

void Attention(const HostBatch& batch, const AttentionArgs& args, const AttentionKernels& kernels,
               ThreadPool& pool, AttentionScratch& scratch) {
  if (batch.n_tokens() == 0) return;
  if (args.chosen.rows == nullptr) return AttentionCall(batch, args, kernels, scratch).Run(pool);
  HEDDLE_CHECK(args.window == 0 && !args.both_ways, "attention: chosen positions and a window");
  scratch.chosen.Divide(batch, args.chosen);
  AttentionCall(scratch.chosen.view(), args, kernels, scratch).Run(pool);
}

}  // namespace heddle::kernels::cpu
