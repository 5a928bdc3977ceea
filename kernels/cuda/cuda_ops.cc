#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/adapter_products.h"
#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/attention/attention_hopper_f8.h"
#include "kernels/cuda/attention/wide_pages.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/linear_parts.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/sample/sample_params.h"
#include "kernels/logit_batch.h"

namespace heddle::kernels::cuda {
namespace {

// Rows times heads from which tiles are faster than a warp for each output: those take 0.07 us a
// row and head of 128 + 512 columns, tiles 10 us for 16 heads and 18 for 128.
constexpr int64_t kLeastTiledHeads = 256;

SampleRow RowOf(const SampleRowParams& row, const LogitEdit* edits, const uint32_t* allowed) {
  return {row,  // its filters
          row.logit_row,
          row.CutsAnything(),
          row.num_top,
          row.forced_token,
          static_cast<int32_t>(row.edits.size()),
          row.seed,
          row.counter,
          edits,
          allowed,
          /*edited=*/nullptr};
}

// Gives rows [first, ...) their scratch, as many as there is room for; how many those are. The
// summaries lie at the workspace's beginning, edited rows at its end.
int32_t PlaceRows(std::span<SampleRow> rows, int64_t vocab, const Workspace& workspace) {
  const int64_t edited_bytes = (vocab * int64_t{sizeof(float)} + 127) / 128 * 128;
  int64_t used = 0;
  int64_t end = workspace.bytes / 128 * 128;
  int32_t count = 0;
  for (SampleRow& row : rows) {
    const bool edits = row.forced_token < 0 && (row.num_edits > 0 || row.typical_p < 1);
    used += SampleRowBytes(vocab);
    end -= edits ? edited_bytes : 0;
    if (used > end || count == kReductionCounters) break;
    if (edits) row.edited = reinterpret_cast<float*>(workspace.data + end);
    ++count;
  }
  HEDDLE_CHECK(count > 0 || rows.empty(), "the workspace does not hold one row of logits");
  return count;
}

AttentionGrouping GroupingOf(const AttentionArgs& args, const AttentionChoice& choice,
                             const DeviceStep& step) {
  return {.group = args.n_heads / args.cache.n_kv_heads,
          .n_kv_heads = args.cache.n_kv_heads,
          .head_dim = args.cache.head_dim,
          .prefill_rows = choice.prefill_rows,
          .layers = args.cache.group,
          .window = args.window,
          .in_chunks = args.in_chunks && args.window > 0,
          .in_order = args.in_order,
          .both_ways = args.both_ways,
          .top_k = args.chosen.rows == nullptr ? 0 : args.chosen.top_k,
          .shares_prefixes =
              choice.prefill != AttentionKernel::kPlain && choice.decode != AttentionKernel::kPlain,
          .widened_page_tokens =
              choice.prefill == AttentionKernel::kHopperWide ? args.cache.page_tokens : 0,
          .copies_values_alone = choice.prefill == AttentionKernel::kHopperWide &&
                                 step.scores_codes && HopperF8Can(args.cache),
          .decodes_in_wide_tiles = choice.decode == AttentionKernel::kLatent &&
                                   args.n_heads > kMostNarrowHeads * args.cache.n_kv_heads,
          .merges_in_tiles = choice.decode == AttentionKernel::kFlash &&
                             MergesWide(args, Info(step.activations).block_bytes),
          .of_logit_rows = step.of_logit_rows};
}

}  // namespace

DeviceBatch CudaOps::Rows(int32_t group) const {
  DeviceBatch batch = step_.groups[static_cast<size_t>(group)];
  batch.n_tokens = step_.n_rows;
  batch.token_ids += step_.first_row;
  if (batch.draw_of_row != nullptr) batch.draw_of_row += step_.first_row;
  batch.positions += step_.first_row;
  if (batch.token_types != nullptr) batch.token_types += step_.first_row;
  batch.kv_slot += step_.first_row;
  return batch;
}

void CudaOps::Embed(const PackedWeight& table, float scale, Tensor out) {
  if (!step_.status.ok()) return;
  Note(LaunchEmbed(Rows(), ViewOf(table), scale, out, step_.activations, step_.stream),
       "embedding");
}

void CudaOps::AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) {
  if (!step_.status.ok() || x.rows == 0) return;
  cuda::AdaptEmbedding(step_, adapters, Rows(), x);
}

void CudaOps::AddPositions(const PackedWeight& table, int32_t offset, Tensor x) {
  if (!step_.status.ok()) return;
  Note(LaunchAddPositions(Rows(), ViewOf(table), offset, x, step_.activations, step_.stream),
       "adding positions");
}

void CudaOps::AddTokenTypes(const PackedWeight& table, Tensor x) {
  if (!step_.status.ok()) return;
  Note(LaunchAddTokenTypes(Rows(), ViewOf(table), x, step_.activations, step_.stream),
       "adding types of tokens");
}

void CudaOps::AddSegments(const SegmentArgs& args) {
  if (!step_.status.ok() || args.x.rows == 0) return;
  const int32_t* segments = step_.segments == nullptr ? nullptr : step_.segments + step_.first_row;
  Note(LaunchAddSegments(segments, args, step_.activations, step_.stream), "adding segments");
}

void CudaOps::Norm(const NormArgs& args) {
  if (!step_.status.ok()) return;
  Note(LaunchNorm(args, NormAdaptersOf(step_, args), step_.activations, step_.stream), "norm");
}

void CudaOps::RopeAngles(const RopeAnglesArgs& args) {
  HEDDLE_CHECK(args.inv_freq.size() <= kMaxFrequencies, "rope: too many frequencies");
  if (!step_.status.ok()) return;
  RopeAnglesParams params = {};  // all of it: launches are compared with those of graphs
  params.batch = Rows();
  params.half = static_cast<int32_t>(args.inv_freq.size());
  params.scale = args.scale;
  params.cos_sin = args.cos_sin;
  // The rest is zeros: a tape compares all of it.
  std::fill(std::copy(args.inv_freq.begin(), args.inv_freq.end(), params.inv_freq),
            std::end(params.inv_freq), 0.0f);
  Note(LaunchRopeAngles(params, step_.stream), "rope angles");
}

void CudaOps::RopeKvWrite(const RopeKvWriteArgs& args) {
  const bool changes_queries = args.q_norm != nullptr || args.cos_sin != nullptr;
  if (!step_.status.ok() || (args.k.data == nullptr && !changes_queries)) return;
  const HeadNormAdapters adapters = {NormAdaptersOf(step_, args.q_norm_adapters, {}),
                                     NormAdaptersOf(step_, args.k_norm_adapters, {})};
  Note(LaunchRopeKvWrite(Rows(args.cache.group), args, adapters, step_.activations, step_.stream),
       "rope and KV write");
}

void CudaOps::ProjectHeads(const LinearArgs& product, const RopeKvWriteArgs& heads) {
  if (products_.LinearOfHeads(product, heads, Rows(heads.cache.group).kv_slot)) return;
  products_.Linear(product);
  RopeKvWrite(heads);
}

void CudaOps::Attention(const AttentionArgs& args) {
  attends_both_ways_ = attends_both_ways_ || args.both_ways;
  if (args.half_keys) return AttendHalves(args);
  AttendRows(args, {});
}

void CudaOps::AttendRows(const AttentionArgs& args, const TilesOf& of) {
  if (args.rotation != nullptr && HasTurns(*step_.host)) return AttendTurned(args, of);
  AttendTiles(args, of);
}

void CudaOps::AttendTiles(const AttentionArgs& args, const TilesOf& of) {
  HEDDLE_CHECK(args.n_heads % args.cache.n_kv_heads == 0, "attention: heads are not in groups");
  if (!step_.status.ok()) return;
  if (args.cache.head_dim > kMaxAttentionHeadDim) {
    return Note(
        absl::UnimplementedError(absl::StrCat("attention with heads of ", args.cache.head_dim,
                                              "; CUDA has kernels up to ", kMaxAttentionHeadDim)));
  }
  const DeviceInfo& device = step_.runtime.info();
  const AttentionChoice choice =
      ChooseAttention(args, step_.activations, device.has_hopper_code, device.max_shared_bytes);
  AttentionGrouping grouping = GroupingOf(args, choice, step_);
  grouping.most_rows = of.most_rows;
  grouping.makes_queries = of.makes_queries;
  grouping.turns_queries = of.turns_queries;
  absl::StatusOr<PlannedAttention> plan = step_.plan_attention(grouping);
  if (!plan.ok()) return Note(plan.status());
  AttentionParams params;
  params.args = args;
  if (of.turns_queries) TurnQueries(*plan, &params.args);
  params.batch = step_.groups[static_cast<size_t>(args.cache.group)];
  if (args.in_order) params.batch.tree_mask = nullptr;
  if (plan->chunk_masks != nullptr) params.batch.tree_mask = plan->chunk_masks;
  params.shared_rows = plan->shared_rows;
  params.tile_merges = plan->tile_merges;
  params.merge_counters = step_.counters;
  // The plan has no more partial results, and pages of a copy, than fit.
  const AttentionRoom room = RoomOf(step_.workspace.bytes, grouping);
  params.partial_out = reinterpret_cast<float*>(step_.workspace.data);
  params.partial_lse = reinterpret_cast<float*>(step_.workspace.data + room.lse_at);
  const Stream stream = step_.stream;
  const int32_t multiprocessors = step_.attention_multiprocessors > 0
                                      ? step_.attention_multiprocessors
                                      : device.num_multiprocessors;
  if (step_.attention_multiprocessors > 0)
    params.max_blocks = kBlocksPerMultiprocessor * multiprocessors;
  bool is_copied = false;  // in the first round for all
  auto launch = [&](AttentionKernel kernel, const AttentionTile* tiles, int32_t count,
                    int32_t rows) {
    if (count == 0) return;
    params.tiles = tiles;
    params.n_tiles = count;
    params.tile_rows = rows;
    switch (kernel) {
      case AttentionKernel::kHopper:
        return Note(LaunchAttentionHopper(params, multiprocessors, stream), "attention");
      case AttentionKernel::kHopperWide:
        if (plan->n_wide_pages > 0) {
          if (!std::exchange(is_copied, true)) CopyWide(args.cache, *plan, room.wide_at);
          return AttendWide(params, *plan, room.wide_at, multiprocessors);
        }
        [[fallthrough]];
      case AttentionKernel::kFlash:
        return Note(LaunchAttentionFlash(params, stream), "attention");
      case AttentionKernel::kLatent:
        return Note(LaunchAttentionLatent(params, stream), "attention");
      case AttentionKernel::kWideHeads:
        return Note(LaunchAttentionWideHeads(params, stream), "attention");
      case AttentionKernel::kPlain:
        return Note(LaunchAttentionPlain(params, step_.activations, stream), "attention");
    }
  };
  AttentionRound from;
  const auto run_until = [&](const AttentionRound& to) {
    launch(choice.prefill, plan->prefill + from.prefill, to.prefill - from.prefill,
           plan->prefill_rows);
    launch(choice.decode, plan->decode + from.decode, to.decode - from.decode, plan->decode_rows);
    Note(LaunchAttentionMerge(params, plan->merges + from.merges, to.merges - from.merges,
                              step_.activations, stream),
         "attention merge");
    from = to;
  };
  for (const AttentionRound& next : plan->later_rounds) run_until(next);
  run_until({plan->n_decode, plan->n_prefill, plan->n_merges});
}

void CudaOps::CopyWide(const KvCacheView& cache, const PlannedAttention& plan, int64_t wide_at) {
  const KvCacheView wide =
      WideView(cache, plan.n_wide_pages, plan.codes_queries, step_.workspace.data + wide_at);
  Note(LaunchWidenPages(
           {.from = cache, .to = wide, .pages = plan.wide_pages, .n_pages = plan.n_wide_pages},
           step_.stream),
       "widening pages");
}

void CudaOps::AttendWide(AttentionParams params, const PlannedAttention& plan, int64_t wide_at,
                         int32_t multiprocessors) {
  const KvCacheView& cache = params.args.cache;
  const bool values_alone = plan.codes_queries;
  const KvCacheView wide =
      WideView(cache, plan.n_wide_pages, values_alone, step_.workspace.data + wide_at);
  if (values_alone) {
    return Note(
        LaunchAttentionHopperF8(params, wide, plan.wide_of_span, multiprocessors, step_.stream),
        "attention");
  }
  params.args.cache = wide;
  params.batch.span_page = plan.wide_of_span;
  Note(LaunchAttentionHopper(params, multiprocessors, step_.stream), "attention");
}

void CudaOps::Route(const RouteArgs& args) {
  HEDDLE_CHECK(args.logits.cols <= kMaxExperts && args.rule.n_groups <= kMaxExpertGroups,
               "route: too many experts or groups");
  if (!step_.status.ok()) return;
  Note(LaunchRoute(args, step_.stream), "routing");
}

// Codes are written out as BF16 for the tiles, each time anew: DeepSeek-V3's 128 heads are 8 MB of
// codes, 17 of BF16.
bool CudaOps::HeadsByTiles(const HeadLinearArgs& args) {
  DeviceWeight heads = ViewOf(*args.heads);
  const bool fits = step_.activations == DType::kBF16 && IsAligned(args.x, 2) &&
                    args.x_step % 8 == 0 && heads.cols % 8 == 0;
  if (!fits || args.x.rows * args.heads->count < kLeastTiledHeads) return false;
  if (heads.layout != WeightLayout::kBF16) {
    const DeviceWeight wide = PackedLayout(WeightLayout::kBF16, heads.rows, heads.cols);
    if (wide.rows * wide.row_bytes > step_.workspace.bytes) return false;
    Note(LaunchDequantize(heads, 0, heads.rows, reinterpret_cast<uint16_t*>(step_.workspace.data),
                          step_.stream),
         "dequantising heads");
    heads = wide;
    heads.data = step_.workspace.data;
  }
  Note(LaunchHeadsTiled(args, heads, step_.stream), "projection of heads");
  return true;
}

void CudaOps::HeadLinear(const HeadLinearArgs& args) {
  if (!step_.status.ok() || args.x.rows == 0) return;
  if (!HeadsByTiles(args)) {
    Note(LaunchHeadLinear(args, ViewOf(*args.heads), step_.activations, step_.stream),
         "projection of heads");
  }
  AdaptHeads(step_, args);
}

void CudaOps::GateRows(Tensor gate_f32, Tensor x) {
  if (!step_.status.ok()) return;
  Note(LaunchGateRows(gate_f32, x, step_.activations, step_.stream), "gating rows");
}

void CudaOps::Sharpen(const SharpenArgs& args) {
  if (!step_.status.ok() || args.x.rows == 0) return;
  Note(LaunchSharpen(Rows(), args, step_.activations, step_.stream), "sharpening queries");
}

void CudaOps::Xielu(const XieluArgs& args) {
  if (!step_.status.ok() || args.x.rows == 0) return;
  Note(LaunchXielu(args, step_.activations, step_.stream), "the activation xIELU");
}

bool CudaOps::EndsWithLogitRows() const {
  return !step_.is_half && LogitBatch::IsMadeOf(*step_.host);
}

// From here on the step's ops find its logit rows alone. No half of a step has such a batch.
void CudaOps::NarrowToLogitRows() {
  HEDDLE_CHECK(EndsWithLogitRows(), "rows without logits lie behind those with them");
  if (!step_.status.ok()) return;
  const absl::StatusOr<NarrowBatch> narrow = step_.narrow();
  if (!narrow.ok()) return Note(narrow.status());
  step_.host = narrow->host;
  step_.groups = narrow->groups;
  step_.n_rows = narrow->host->n_tokens();
  step_.segments = nullptr;
  step_.adapters = step_.logit_adapters;
  step_.of_logit_rows = true;
}

void CudaOps::GatherLogitRows(Tensor x, Tensor out) {
  if (!step_.status.ok()) return;
  Note(LaunchGatherRows(Rows(), x, out, step_.activations, step_.stream), "gathering rows");
}

void CudaOps::CopyRows(Tensor x, Tensor out) {
  if (!step_.status.ok() || x.rows == 0) return;
  Note(LaunchCopyRows(x, out, step_.activations, step_.stream), "copying rows");
}

void CudaOps::SumRows(const SumRowsArgs& args) {
  if (!step_.status.ok() || args.ranges.empty()) return;
  const auto n = static_cast<int32_t>(args.ranges.size());
  float* sums = Return(args.out, n * args.x.cols, step_.row_sums, &row_sums_used_);
  if (!step_.status.ok()) return;
  const RowRange* ranges = step_.staging.Add(args.ranges);
  Note(step_.staging.Send());
  if (!step_.status.ok()) return;
  Note(LaunchSumRows(args.x, ranges, n, sums, step_.activations, step_.stream), "summing rows");
}

void CudaOps::ScaleLogits(Tensor logits_f32, float scale, float softcap) {
  if (!step_.status.ok()) return;
  Note(LaunchScaleLogits(logits_f32, scale, softcap, step_.stream), "scaling logits");
}

uint8_t* CudaOps::TakeResults(const Workspace& from, int64_t bytes, int64_t* used) {
  const int64_t at = *used;
  *used += bytes;
  if (*used <= from.bytes) return from.data + at;
  Note(absl::ResourceExhaustedError(absl::StrCat("a step's sampling results need ", *used,
                                                 " bytes, the device keeps ", from.bytes)));
  return nullptr;
}

void CudaOps::Sample(const SampleArgs& args) {
  if (!step_.status.ok() || args.rows.empty()) return;
  std::vector<SampleRow> rows;
  bool reports = false;
  for (const SampleRowParams& row : args.rows) {
    const int64_t mask_words = row.allowed == nullptr ? 0 : (args.logits.cols + 31) / 32;
    const std::span<const uint32_t> mask(row.allowed, static_cast<size_t>(mask_words));
    rows.push_back(RowOf(row, step_.staging.Add(row.edits), step_.staging.Add(mask)));
    reports = reports || row.num_top >= 0;
  }
  std::vector<int32_t> launches;  // rows of each
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(launches.back())) {
    launches.push_back(
        PlaceRows(std::span(rows).subspan(first), args.logits.cols, step_.workspace));
  }
  SampleParams params;
  params.rows = step_.staging.Add(rows);
  Note(step_.staging.Send());
  params.logits = static_cast<const float*>(args.logits.data);
  params.stride = args.logits.stride;
  params.vocab = static_cast<int32_t>(args.logits.cols);
  params.max_top = args.max_top;
  params.pieces = reinterpret_cast<SamplePiece*>(step_.workspace.data);
  params.counters = step_.counters;
  const auto n = static_cast<int64_t>(rows.size());
  params.tokens = Return(args.tokens, n, step_.drawn, &drawn_used_);
  if (reports) {
    const Workspace& results = step_.results;
    params.logprobs = Return(args.logprobs, n, results, &results_used_);
    params.top_tokens = Return(args.top_tokens, n * args.max_top, results, &results_used_);
    params.top_logprobs = Return(args.top_logprobs, n * args.max_top, results, &results_used_);
  }
  for (const int32_t count : launches) {
    if (!step_.status.ok()) return;
    Note(LaunchSample(params, count, step_.runtime.info().num_multiprocessors, step_.stream),
         "sampling");
    params.first += count;
  }
}

}  // namespace heddle::kernels::cuda
