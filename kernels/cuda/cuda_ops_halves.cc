// Attention of queries that are made in the workspace first, of as many key heads at a time as
// there is room for, so that the kernels are those of other models: queries that meet half of each
// key, and those that are rotated further for pieces of a context.
#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/attention/attention_halves.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/wide_pages.h"
#include "kernels/cuda/cuda_ops.h"

namespace heddle::kernels::cuda {
namespace {

// The address that row 0 would have if row `first` is at `rows`. Rows before are never read.
void* RowZero(uint8_t* rows, int64_t first, int64_t row_bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(rows) -
                                 static_cast<uintptr_t>(first * row_bytes));
}

// The cache of heads [first, first + count).
KvCacheView HeadsOf(const KvCacheView& cache, int64_t first, int32_t count) {
  KvCacheView some = cache;
  some.page_stride = cache.PageOffset(1);
  some.keys = static_cast<uint8_t*>(cache.keys) + first * cache.head_bytes();
  some.values = static_cast<uint8_t*>(cache.values) + first * cache.head_bytes();
  some.n_kv_heads = count;
  return some;
}

// Heads, of keys or of queries, whose queries of `rows` rows fit `room` bytes, about as many each
// time. `row_bytes`: of a head's queries. RESOURCE_EXHAUSTED if those of one do not fit.
absl::StatusOr<int32_t> HeadsAtOnce(int32_t n_heads, int64_t rows, int64_t row_bytes,
                                    int64_t room) {
  const int64_t most = room / (rows * row_bytes);
  if (most == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queries of a head of ", rows, " rows need ", rows * row_bytes,
        " bytes, half of the workspace has ", room, "; use a smaller --max-batch-tokens"));
  }
  const int64_t times = (n_heads + most - 1) / most;
  return static_cast<int32_t>((n_heads + times - 1) / times);
}

// Rows [first_row, first_row + n_rows) of the batch with a turn, once for each of their pieces that
// has one: at least as many as a plan makes.
int64_t TurnedRows(const HostBatch& batch, int32_t first_row, int32_t n_rows) {
  int64_t turned = 0;
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    if (batch.q_begin[s] < first_row || batch.q_begin[s] >= first_row + n_rows) continue;
    const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    for (const ContextPiece& piece : batch.PiecesOf(s)) turned += piece.turn != 0 ? rows : 0;
  }
  return turned;
}

}  // namespace

// Halves of a step pass tensors of all its rows; the tiles are those of their own.
void CudaOps::AttendHalves(const AttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  HEDDLE_CHECK(cache.head_dim % 2 == 0 && args.n_heads % cache.n_kv_heads == 0,
               "attention: odd halves, or heads that are not in groups");
  HEDDLE_CHECK(args.bias.table == nullptr, "attention: biases of halves");
  if (!step_.status.ok() || step_.n_rows == 0) return;
  const int32_t group = args.n_heads / cache.n_kv_heads;
  const int64_t bytes = Info(step_.activations).block_bytes;
  const int64_t columns = int64_t{group} * cache.head_dim;  // of a key head's queries
  const int64_t at = QueriesAt(step_.workspace.bytes);
  const absl::StatusOr<int32_t> fitting =
      HeadsAtOnce(cache.n_kv_heads, step_.n_rows, columns * bytes, step_.workspace.bytes - at);
  if (!fitting.ok()) return Note(fitting.status());
  const int32_t heads = *fitting;
  HEDDLE_CHECK(heads == cache.n_kv_heads || args.lse == nullptr,
               "attention: sums of some heads at a time");
  for (int32_t first = 0; first < cache.n_kv_heads && step_.status.ok(); first += heads) {
    const int32_t count = std::min(heads, cache.n_kv_heads - first);
    uint8_t* const data = step_.workspace.data + at;
    const int64_t cols = count * columns;
    const Tensor halves = {args.q.row<uint8_t>(0) + step_.first_row * args.q.stride * bytes,
                           step_.n_rows, args.q.cols, args.q.stride};
    Note(LaunchWholeQueries({.halves = halves,
                             .whole = {data, step_.n_rows, cols, cols},
                             .half_dim = cache.head_dim / 2,
                             .first_head = int64_t{first} * group},
                            step_.activations, step_.stream),
         "whole queries");
    AttentionArgs own = args;
    own.half_keys = false;
    own.q = {RowZero(data, step_.first_row, cols * bytes), args.q.rows, cols, cols};
    own.n_heads = count * group;
    own.cache = HeadsOf(cache, first, count);
    own.out.data = args.out.row<uint8_t>(0) + first * columns * bytes;
    own.out.cols = cols;
    if (args.sinks != nullptr) own.sinks = args.sinks + int64_t{first} * group;
    AttendTiles(own, {.makes_queries = true});
  }
}

void CudaOps::AttendTurned(const AttentionArgs& args, const TilesOf& of) {
  const KvCacheView& cache = args.cache;
  HEDDLE_CHECK(args.n_heads % cache.n_kv_heads == 0, "attention: heads are not in groups");
  HEDDLE_CHECK(args.bias.table == nullptr, "attention: biases of pieces");
  if (!step_.status.ok() || step_.n_rows == 0) return;
  const int32_t group = args.n_heads / cache.n_kv_heads;
  const int64_t bytes = Info(step_.activations).block_bytes;
  const int64_t rows = step_.n_rows + TurnedRows(*step_.host, step_.first_row, step_.n_rows);
  const int64_t room = step_.workspace.bytes - QueriesAt(step_.workspace.bytes);
  // A key head has many heads of queries where it is latents: some of them at a time, then.
  const bool divides = rows * group * cache.head_dim * bytes > room;
  const int32_t units = divides ? group : cache.n_kv_heads, unit = divides ? 1 : group;
  const absl::StatusOr<int32_t> fitting =
      HeadsAtOnce(units, rows, int64_t{unit} * cache.head_dim * bytes, room);
  if (!fitting.ok()) return Note(fitting.status());
  const int32_t at_once = *fitting * unit;
  HEDDLE_CHECK(at_once == args.n_heads || args.lse == nullptr,
               "attention: sums of some heads at a time");
  TilesOf own_tiles = of;
  own_tiles.makes_queries = own_tiles.turns_queries = true;
  for (int32_t first = 0, count = 0; first < args.n_heads && step_.status.ok(); first += count) {
    const int32_t left = divides ? group - first % group : args.n_heads - first;
    count = std::min(at_once, left);
    AttentionArgs own = args;
    own.n_heads = count;
    own.cache = HeadsOf(cache, first / group, std::max(1, count / group));
    for (Tensor* tensor : {&own.q, &own.out}) {
      tensor->data = tensor->row<uint8_t>(0) + int64_t{first} * cache.head_dim * bytes;
      tensor->cols = int64_t{count} * cache.head_dim;
    }
    if (args.sinks != nullptr) own.sinks = args.sinks + first;
    AttendTiles(own, own_tiles);
  }
}

// The queries of all rows, and behind them the turned ones that the plan names.
void CudaOps::TurnQueries(const PlannedAttention& plan, AttentionArgs* args) {
  HEDDLE_CHECK(args->rotation->inv_freq.size() <= kMaxTurned, "attention: too many frequencies");
  const int64_t cols = int64_t{args->n_heads} * args->cache.head_dim;
  uint8_t* const data = step_.workspace.data + QueriesAt(step_.workspace.bytes);
  const int64_t rows = int64_t{step_.n_rows} + plan.n_turned_rows;
  TurnQueriesParams params;
  params.from = args->q;
  params.to = {data, rows, cols, cols};
  params.head_dim = args->cache.head_dim;
  params.first_row = step_.first_row;
  params.n_copied = step_.n_rows;
  params.turned = plan.turned_rows;
  params.n_turned = plan.n_turned_rows;
  params.half = static_cast<int32_t>(args->rotation->inv_freq.size());
  params.interleaved = args->rotation->layout == RopeLayout::kInterleaved ? 1 : 0;
  std::ranges::copy(args->rotation->inv_freq, params.inv_freq);
  Note(LaunchTurnQueries(params, step_.activations, step_.stream), "queries of pieces");
  const int64_t row_bytes = cols * Info(step_.activations).block_bytes;
  args->q = {RowZero(data, step_.first_row, row_bytes), step_.first_row + rows, cols, cols};
}

}  // namespace heddle::kernels::cuda
