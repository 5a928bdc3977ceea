// Attention of queries that meet half of each key: whole queries are made in the workspace, of as
// many key heads at a time as there is room for, and the kernels are those of other models.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/attention/attention_halves.h"
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
  const int64_t most = (step_.workspace.bytes - at) / (step_.n_rows * columns * bytes);
  if (most == 0) {
    return Note(absl::ResourceExhaustedError(
        absl::StrCat("the queries of a key head of ", step_.n_rows, " rows need ",
                     step_.n_rows * columns * bytes, " bytes, half of the workspace has ",
                     step_.workspace.bytes - at, "; use a smaller --max-batch-tokens")));
  }
  const int64_t pieces = (cache.n_kv_heads + most - 1) / most;
  const auto heads = static_cast<int32_t>((cache.n_kv_heads + pieces - 1) / pieces);
  HEDDLE_CHECK(pieces == 1 || args.lse == nullptr, "attention: sums of some heads at a time");
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

}  // namespace heddle::kernels::cuda
