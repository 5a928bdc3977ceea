// Drawing tokens on the device, without sorting.
//
// The blocks of a row summarise its pieces (sample_pieces.cuh), each a slice of them: one pass over
// the logits. The last block to arrive has all summaries: it finds the largest logit, applies the
// filters (sample_filter.cuh), finds the piece in which the draw falls, and the token in it. A
// filter reads again those pieces that may hold tokens that it keeps. With few rows a row has many
// blocks, with many rows one.
//
// The limit: logits are read once, vocab * 4 bytes a row. With many rows that is the memory's or
// the L2's bandwidth. With one row (513 KB of the L2's, 63 blocks with one piece to a warp) it is a
// chain of waits: the row's parameters, the piece, the summary's way through the L2 with the fence
// and the counter, the summaries, the piece of the draw; some 5 x 300-700 clocks and as much again
// for the arithmetic between. docs/benchmarks/gpu.md has figures.
#include <algorithm>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/sample/sample_filter.cuh"
#include "kernels/cuda/sample/sample_params.h"
#include "kernels/cuda/sample/sample_uniform.cuh"

namespace heddle::kernels::cuda {
namespace sample {

// The row with the edits among pieces [begin, end), in `edited` [vocab]; by the whole block.
HEDDLE_DEVICE void EditPieces(const float* logits, const SampleRow& row, int vocab, int begin,
                              int end) {
  const RowView plain = {logits, nullptr, vocab};
  for (int piece = begin + WarpIndex(); piece < end; piece += kWarps) {
    StorePiece(LoadPiece(plain, piece), piece, vocab, row.edited);
  }
  SyncThreads();
  for (int e = ThreadX(); e < row.num_edits; e += kThreads) {
    const LogitEdit edit = row.edits[e];
    const int piece = edit.token / kSamplePieceTokens;
    if (piece < begin || piece >= end) continue;
    const float x = logits[edit.token] + edit.bias;
    row.edited[edit.token] = (x > 0 ? x / edit.scale_div : x * edit.scale_div) + edit.add;
  }
  SyncThreads();
}

// Filters and draws that a row asks for.
struct Task {
  RowView plain;          // as the logits are
  RowView view;           // as the draw sees them
  SamplePiece* drawn;     // summaries of `view` at the row's temperature
  SamplePiece* reported;  // of `plain` at temperature 1; the same, if that is the same
  float scale;            // log2(e) / temperature; of a greedy row that of temperature 1
  bool draws;
  bool reports;
  HEDDLE_DEVICE bool shares() const { return drawn == reported; }
};
HEDDLE_DEVICE Task TaskOf(const SampleParams& p, const SampleRow& row) {
  Task task;
  task.plain = {p.logits + row.logit_row * p.stride, nullptr, p.vocab};
  task.view = {row.num_edits > 0 ? row.edited : task.plain.values, row.allowed, p.vocab};
  task.draws = row.forced_token < 0;
  task.reports = row.num_top >= 0;
  task.scale = row.temperature == 0 ? kLog2E : kLog2E / row.temperature;
  const bool shares = task.draws && row.num_edits == 0 && row.allowed == nullptr &&
                      (row.temperature == 0 || (row.temperature == 1 && !row.filters));
  const int pieces = task.plain.pieces();
  task.drawn = p.pieces + static_cast<int64_t>(BlockY()) * 2 * pieces;
  task.reported = shares ? task.drawn : task.drawn + pieces;
  return task;
}

// This block's share of the pieces.
HEDDLE_DEVICE void SummariseShare(const SampleRow& row, const Task& task) {
  const int pieces = task.plain.pieces();
  const int each = (pieces + GridX() - 1) / GridX();
  const int begin = BlockX() * each;
  const int end = begin + each < pieces ? begin + each : pieces;
  if (task.draws) {
    if (row.num_edits > 0) EditPieces(task.plain.values, row, task.plain.vocab, begin, end);
    const bool sums = row.temperature != 0 || (task.shares() && task.reports);
    SummariseAll(task.view, begin, end, task.scale, sums, task.drawn);
  }
  if (task.reports && !task.shares()) {
    SummariseAll(task.plain, begin, end, kLog2E, /*sums=*/true, task.reported);
  }
}

// True for the last of a row's blocks, which then finds what all of them wrote.
HEDDLE_DEVICE bool IsLastOfRow(const SampleParams& p, const Memory& memory) {
  if (GridX() == 1) {
    SyncThreads();
    return true;
  }
  FenceDevice();
  SyncThreads();
  if (ThreadX() == 0) memory.count.Set(0, AtomicAddGlobal(p.counters + BlockY(), 1));
  SyncThreads();
  if (memory.count.Get(0) != GridX() - 1) return false;
  FenceDevice();
  if (ThreadX() == 0) p.counters[BlockY()] = 0;  // for the next launch
  return true;
}

// `before` [j] becomes the sum of what stands before this lane's part of load j, in order of id.
// Returns the total. The scans of all loads go side by side.
HEDDLE_DEVICE Mass ScanLoads(const Mass (&mine)[kLoads], Mass (&before)[kLoads]) {
  HEDDLE_UNROLL
  for (int j = 0; j < kLoads; ++j) before[j] = mine[j];
  for (int delta = 1; delta < 32; delta <<= 1) {
    Mass other[kLoads];
    HEDDLE_UNROLL
    for (int j = 0; j < kLoads; ++j) other[j] = ShuffleUp(before[j], delta);
    HEDDLE_UNROLL
    for (int j = 0; j < kLoads; ++j) before[j] += Lane() >= delta ? other[j] : 0;
  }
  Mass total = 0;
  HEDDLE_UNROLL
  for (int j = 0; j < kLoads; ++j) {
    const Mass load = Shuffle(before[j], 31);
    before[j] += total - mine[j];
    total += load;
  }
  return total;
}

// The token of a piece under which `share` < 1 of what is kept of it lies, in order of id; by one
// warp. REQUIRES: something is kept.
HEDDLE_DEVICE void DrawInPiece(const RowView& row, int piece, const SamplePiece& summary,
                               const Keep& keep, double share, int32_t* token) {
  const Elements e = LoadPiece(row, piece);
  const uint32_t kept = KeptOf(e, keep, summary.ties);
  const Weigh own = {summary.max, keep.weigh.scale};
  auto mass_of = [&](int i) { return (kept >> i & 1u) != 0 ? own.MassOf(e.x[i]) : 0; };
  Mass mine[kLoads] = {};
  HEDDLE_UNROLL
  for (int i = 0; i < kPerLane; ++i) mine[i / kUnit] += mass_of(i);
  Mass before[kLoads];
  const Mass total = ScanLoads(mine, before);
  auto target = static_cast<Mass>(static_cast<double>(total) * share);
  if (target >= total) target = total - 1;
  HEDDLE_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    Mass& sum = before[i / kUnit];
    const Mass mass = mass_of(i);
    if (sum <= target && target < sum + mass) *token = IdOf(piece, i);
    sum += mass;
  }
}

// Inverts the cumulative distribution of the kept tokens in order of id.
HEDDLE_DEVICE void DrawKept(const RowView& row, const SamplePiece* pieces, const Keep& keep,
                            float uniform, const Memory& memory, int32_t* token) {
  const int count = row.pieces();
  const Scan scan = ScanMasses(pieces, count, keep.weigh, memory);
  const auto target = static_cast<Mass>(static_cast<double>(scan.total) * uniform);
  const Run run(count);
  Mass before = scan.before;
  for (int i = run.begin; i < run.end; ++i) {
    const Mass mass = MassOf(pieces[i], keep.weigh);
    if (before <= target && target < before + mass) {
      memory.warps.Set(0, static_cast<Mass>(i));
      memory.warps.Set(1, target - before);
      memory.warps.Set(2, mass);
    }
    before += mass;
  }
  SyncThreads();
  if (WarpIndex() == 0) {
    const auto piece = static_cast<int>(memory.warps.Get(0));
    const double share =
        static_cast<double>(memory.warps.Get(1)) / static_cast<double>(memory.warps.Get(2));
    DrawInPiece(row, piece, pieces[piece], keep, share, token);
  }
}

// Writes the drawn token; thread-uniform decisions throughout.
HEDDLE_DEVICE void DrawRow(const SampleRow& row, const Task& task, int32_t* token,
                           const Memory& memory) {
  const Ranked best = BestOf(task.drawn, task.view.pieces(), memory);
  const bool banned = best.value == -Infinity();
  if (banned || row.temperature == 0) {
    if (ThreadX() == 0) *token = banned ? -1 : best.id;
    return;
  }
  Keep keep = {kWhole, 0.0f, {best.value, task.scale}};
  const RowView from = FilterRow(task.view, row, task.drawn, &keep, memory);
  DrawKept(from, task.drawn, keep, Uniform(row.seed, row.counter, /*stream=*/0), memory, token);
}

// The summary's maximum becomes the best of a piece's tokens that rank after `last`; by one warp.
HEDDLE_DEVICE void PassBest(const RowView& row, int piece, Ranked last, SamplePiece* summary) {
  const Elements e = LoadPiece(row, piece);
  Ranked best = {-Infinity(), -1};
  HEDDLE_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    const Ranked other = {e.x[i], IdOf(piece, i)};
    if (other.id < row.vocab && last.Before(other) && other.Before(best)) best = other;
  }
  best = WarpBest(best);
  if (Lane() == 0) {
    summary->max = best.value;
    summary->id = best.id;
  }
}

// Logprobs of the drawn token and of the likeliest, from the unedited logits.
HEDDLE_DEVICE void ReportRow(const SampleParams& p, const SampleRow& row, const Task& task, int n,
                             const Memory& memory) {
  const int count = task.plain.pieces();
  Ranked best = BestOf(task.reported, count, memory);
  const Weigh weigh = {best.value, kLog2E};
  const Mass all = ScanMasses(task.reported, count, weigh, memory).total;
  const float log_sum = Log(static_cast<float>(all) / kOne);
  auto logprob = [&](float x) { return (x == weigh.max ? 0.0f : x - weigh.max) - log_sum; };
  if (ThreadX() == 0) {
    const int token = p.tokens[n];
    p.logprobs[n] = token >= 0 ? logprob(Clean(task.plain.values[token])) : -Infinity();
  }
  for (int j = 0; j < row.num_top; ++j) {
    const int64_t to = static_cast<int64_t>(n) * p.max_top + j;
    if (ThreadX() == 0) {
      p.top_tokens[to] = best.id;
      p.top_logprobs[to] = best.id < 0 ? -Infinity() : logprob(best.value);
    }
    if (best.id < 0 || j + 1 == row.num_top) continue;
    const int piece = best.id / kSamplePieceTokens;
    if (WarpIndex() == 0) PassBest(task.plain, piece, best, task.reported + piece);
    SyncThreads();
    best = BestOf(task.reported, count, memory);
  }
}

// BlockX: a share of the row's pieces. BlockY: a row.
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 2) SampleKernel(HEDDLE_PARAMS(SampleParams, p)) {
  StartInTurn();
  const Memory memory{SharedArena()};
  const int n = p.first + BlockY();
  const SampleRow row = p.rows[n];
  const Task task = TaskOf(p, row);
  SummariseShare(row, task);
  if (!IsLastOfRow(p, memory)) return;
  if (task.draws) {
    DrawRow(row, task, p.tokens + n, memory);
  } else if (ThreadX() == 0) {
    p.tokens[n] = row.forced_token;
  }
  SyncThreads();  // the token is written
  if (task.reports) ReportRow(p, row, task, n, memory);
}

}  // namespace sample

Error LaunchSample(const SampleParams& params, int32_t count, int32_t num_multiprocessors,
                   Stream stream) {
  // Two blocks to a multiprocessor. Pieces for four warps of a block, one to each of the
  // multiprocessor's schedulers, are the least that still shortens the way.
  const int32_t useful = CeilDiv(SamplePieces(params.vocab), 4);
  const int32_t wanted = count > 0 ? 2 * num_multiprocessors / count : 1;
  const LaunchShape shape = {.grid_x = std::clamp(wanted, 1, useful),
                             .grid_y = count,
                             .threads = sample::kThreads,
                             .shared_bytes = sample::kSharedBytes};
  return Launch(sample::SampleKernel, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
