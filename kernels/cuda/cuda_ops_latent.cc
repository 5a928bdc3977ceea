// Attention over latents of long chunks of prompts: each head's keys and values are made of the
// latents of all pages that the chunks see, into the workspace, and attention is that of heads of
// 192 and 128 columns. Decoding and short chunks stay with the latents (decision 0157).
#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cuda/attention/wide_pages.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/linear_parts.h"

namespace heddle::kernels::cuda {

// The parts of the workspace behind partial results. Keys and values are of as many heads at a time
// as fit.
struct ExpandedMemory {
  DeviceWeight keys_of_latents, values_of_latents;  // kBF16, of all heads
  Tensor latents;                                   // [positions of the pages, kv_rank + rotated]
  uint8_t* rest = nullptr;
  int64_t rest_bytes = 0;
  int32_t heads = 0;  // at a time; 0: none fits
};

namespace {

constexpr int32_t kLeastExpandedRows = 256;  // of a sequence: two tiles
constexpr int64_t kBytes = 2;                // of an element

bool IsAligned16(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 8 == 0;
}

// Whether the kernels take the shapes, and nothing asks for what only latents have.
bool CanExpand(const LatentAttentionArgs& args, const DeviceStep& step) {
  const AttentionArgs& a = args.attention;
  const KvCacheView& cache = a.cache;
  const PackedStack& keys = *args.queries.heads;
  const PackedStack& values = *args.values.heads;
  const bool right_shape =
      cache.n_kv_heads == 1 && cache.keys == cache.values && keys.count == a.n_heads &&
      values.count == a.n_heads && args.queries.carried == kExpandedRotatedDim &&
      keys.cols == kExpandedKeyDim - kExpandedRotatedDim && keys.rows % 8 == 0 &&
      cache.head_dim == keys.rows + kExpandedRotatedDim && values.cols == keys.rows &&
      values.rows == kExpandedValueDim && args.values.out_step == kExpandedValueDim &&
      cache.head_dim >= kExpandedValueDim;
  const bool right_memory = cache.dtype != DType::kF32 && cache.page_tokens >= 8 &&
                            cache.page_tokens <= 128 && cache.page_stride % 16 == 0 &&
                            reinterpret_cast<uintptr_t>(cache.keys) % 16 == 0 && IsAligned16(a.q) &&
                            IsAligned16(a.out) && IsAligned16(args.queries.x) &&
                            args.queries.x_step % 8 == 0 && IsAligned16(args.values.out);
  const bool adapts = args.queries.adapters != nullptr || args.values.adapters != nullptr;
  const bool is_plain = !(adapts && step.adapters.n_segments > 0) && a.window == 0 &&
                        !a.both_ways && a.softcap == 0 && a.sinks == nullptr && a.lse == nullptr &&
                        a.bias.table == nullptr && a.chosen.rows == nullptr && a.scale > 0;
  return right_shape && right_memory && is_plain && step.activations == DType::kBF16 &&
         step.runtime.info().has_hopper_code;
}

Tensor ColumnsFrom(const Tensor& tensor, int64_t column) {
  return {tensor.row<uint16_t>(0) + column, tensor.rows, tensor.cols - column, tensor.stride};
}

// Memory from the workspace's `at` on.
ExpandedMemory Place(const LatentAttentionArgs& args, const DeviceStep& step, int64_t at,
                     int64_t n_pages) {
  const KvCacheView& cache = args.attention.cache;
  const auto take = [&](int64_t bytes) {
    uint8_t* const begin = step.workspace.data + at;
    at = RoundUp(at + bytes, 256);
    return begin;
  };
  const auto weight = [&](const PackedStack& heads) {
    DeviceWeight all = ViewOf(heads);
    if (all.layout == WeightLayout::kBF16) return all;
    all = PackedLayout(WeightLayout::kBF16, all.rows, all.cols);
    all.data = take(all.rows * all.row_bytes);
    return all;
  };
  ExpandedMemory memory;
  memory.keys_of_latents = weight(*args.queries.heads);
  memory.values_of_latents = weight(*args.values.heads);
  const int64_t positions = n_pages * cache.page_tokens;
  memory.latents = {take(positions * cache.head_dim * kBytes), positions, cache.head_dim,
                    cache.head_dim};
  memory.rest = take(0);
  memory.rest_bytes = step.workspace.bytes - at - int64_t{3} * 256;  // alignment of three tensors
  const int64_t head_bytes =
      (positions * (kExpandedKeyDim + kExpandedValueDim) + int64_t{step.n_rows} * kExpandedKeyDim) *
      kBytes;
  memory.heads = static_cast<int32_t>(
      std::clamp<int64_t>(memory.rest_bytes / head_bytes, 0, args.attention.n_heads));
  return memory;
}

}  // namespace

void CudaOps::AttendLatents(const LatentAttentionArgs& args) {
  if (!step_.status.ok()) return;
  // A half of a step attends by sequences, and projects its own rows.
  HeadLinearArgs projection = args.values;
  const int64_t bytes = Info(step_.activations).block_bytes;
  projection.x = RowsOf(projection.x, step_.first_row, step_.n_rows, bytes);
  projection.out = RowsOf(projection.out, step_.first_row, step_.n_rows, bytes);
  const auto stay_with_latents = [&] {
    Attention(args.attention);
    HeadLinear(projection);
  };
  if (!CanExpand(args, step_)) return stay_with_latents();
  const AttentionArgs& a = args.attention;
  const AttentionGrouping grouping = {
      .n_kv_heads = a.n_heads,
      .head_dim = kExpandedValueDim,
      .prefill_rows = kHopperTileRows,
      .layers = a.cache.group,
      .in_order = a.in_order,
      .least_rows = kLeastExpandedRows,
      .expands = true,
      .turns_queries = a.rotation != nullptr && HasTurns(*step_.host)};
  const absl::StatusOr<PlannedAttention> plan = step_.plan_attention(grouping);
  if (!plan.ok()) return Note(plan.status());
  const int64_t at = RoomOf(step_.workspace.bytes, grouping).wide_at;
  const ExpandedMemory memory = Place(args, step_, at, plan->n_wide_pages);
  if (plan->n_prefill == 0 || memory.heads == 0) return stay_with_latents();

  AttendRows(a, {.most_rows = kLeastExpandedRows - 1});  // first: it uses the workspace, too
  for (const auto& [from, to] : {std::pair(ViewOf(*args.queries.heads), memory.keys_of_latents),
                                 std::pair(ViewOf(*args.values.heads), memory.values_of_latents)}) {
    if (from.layout == WeightLayout::kBF16) continue;
    auto* const out = reinterpret_cast<uint16_t*>(const_cast<uint8_t*>(to.data));
    Note(LaunchDequantize(from, 0, from.rows, out, step_.stream), "dequantising heads");
  }
  Note(LaunchGatherLatents({.from = a.cache,
                            .pages = plan->wide_pages,
                            .n_pages = plan->n_wide_pages,
                            .to = memory.latents},
                           step_.stream),
       "gathering latents");
  for (int32_t first = 0; first < a.n_heads && step_.status.ok(); first += memory.heads) {
    AttendExpanded(args, *plan, memory, first, std::min(memory.heads, a.n_heads - first));
  }
  if (plan->n_expanded_rows < step_.n_rows) HeadLinear(projection);
  Note(LaunchJoinHeads({.rows = plan->expanded_rows,
                        .n_rows = plan->n_expanded_rows,
                        .n_heads = a.n_heads,
                        .first = a.out,
                        .to = args.values.out,
                        .first_step = kExpandedValueDim,
                        .to_step = kExpandedValueDim,
                        .first_cols = kExpandedValueDim},
                       step_.stream),
       "results of heads");
}

// The heads' results are left in the first columns of the rows of attention.out.
void CudaOps::AttendExpanded(const LatentAttentionArgs& args, const PlannedAttention& plan,
                             const ExpandedMemory& memory, int32_t first, int32_t heads) {
  const AttentionArgs& a = args.attention;
  const int64_t positions = memory.latents.rows;
  uint8_t* at = memory.rest;
  const auto take = [&](int64_t rows, int64_t cols) {
    const Tensor tensor = {at, rows, heads * cols, heads * cols};
    at += RoundUp(rows * heads * cols * kBytes, 256);
    return tensor;
  };
  // Rows are those of the batch: the address of its first one, which a second half has no room for.
  Tensor queries = take(step_.n_rows, kExpandedKeyDim);
  queries.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(queries.data) -
                                         step_.first_row * queries.stride * kBytes);
  const Tensor keys = take(positions, kExpandedKeyDim);
  const Tensor values = take(positions, kExpandedValueDim);
  const auto piece = [&](const PackedStack& all) {
    PackedStack some;
    some.count = heads;
    some.rows = all.rows;
    some.cols = all.cols;
    return some;
  };
  const auto weight = [&](DeviceWeight all, int64_t rows) {
    all.data += first * rows * all.row_bytes;
    return all;
  };
  const PackedStack key_heads = piece(*args.queries.heads);
  const PackedStack value_heads = piece(*args.values.heads);
  Note(LaunchJoinHeads({.rows = plan.expanded_rows,
                        .n_rows = plan.n_expanded_rows,
                        .n_heads = heads,
                        .first = ColumnsFrom(a.q, int64_t{first} * a.cache.head_dim),
                        .then = ColumnsFrom(args.queries.x, first * args.queries.x_step),
                        .to = queries,
                        .first_step = a.cache.head_dim,
                        .then_step = static_cast<int32_t>(args.queries.x_step),
                        .to_step = kExpandedKeyDim,
                        .first_cols = kExpandedRotatedDim,
                        .then_cols = kExpandedKeyDim - kExpandedRotatedDim},
                       step_.stream),
       "queries of heads");
  Note(LaunchHeadsTurned({.x = memory.latents,
                          .heads = &key_heads,
                          .carried = kExpandedRotatedDim,
                          .out = keys,
                          .out_step = kExpandedKeyDim},
                         weight(memory.keys_of_latents, key_heads.rows), step_.stream),
       "keys of latents");
  Note(LaunchHeadsTiled({.x = memory.latents,
                         .heads = &value_heads,
                         .out = values,
                         .out_step = kExpandedValueDim},
                        weight(memory.values_of_latents, value_heads.rows), step_.stream),
       "values of latents");

  AttentionParams params;
  params.args = a;
  params.args.q = queries;
  params.args.out = ColumnsFrom(a.out, int64_t{first} * kExpandedValueDim);
  params.args.n_heads = params.args.cache.n_kv_heads = heads;
  params.args.cache.head_dim = kExpandedValueDim;
  params.batch = step_.groups[static_cast<size_t>(a.cache.group)];
  params.batch.tree_mask = nullptr;  // trees have fewer rows
  params.tiles = plan.prefill;
  params.n_tiles = plan.n_prefill;
  params.tile_rows = plan.prefill_rows;
  params.partial_out = reinterpret_cast<float*>(step_.workspace.data);
  params.partial_lse = reinterpret_cast<float*>(
      step_.workspace.data + RoomOf(step_.workspace.bytes, plan.grouping).lse_at);
  AttentionParams of_pages = params;
  of_pages.batch.span_page = plan.wide_of_span;
  const ExpandedKeys expanded = {keys.data, values.data, plan.n_wide_pages};
  const int32_t multiprocessors = step_.attention_multiprocessors > 0
                                      ? step_.attention_multiprocessors
                                      : step_.runtime.info().num_multiprocessors;
  Note(LaunchAttentionExpanded(of_pages, expanded, multiprocessors, step_.stream),
       "attention of heads");
  Note(LaunchAttentionMerge(params, plan.merges, plan.n_merges, step_.activations, step_.stream),
       "attention merge");
}

}  // namespace heddle::kernels::cuda
