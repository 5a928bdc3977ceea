// Mixtures of experts: how rows are grouped by their experts, and by which kernels they are
// multiplied.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/adapter_products.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/linear_parts.h"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

// Pairs of rows and experts in a launch for adapters, whose blocks are counted in a direction of up
// to 65,535.
constexpr int64_t kMostAdaptedPairs = 65535;

// Blocks that group so many pairs; 0: one block does, in one launch.
int64_t BlocksThatGroup(int64_t n_pairs) {
  return n_pairs > kMostPairsOfBlock ? (n_pairs + kGroupPairs - 1) / kGroupPairs : 0;
}

int64_t MostChunks(int64_t n_pairs, int32_t n_experts, int32_t chunk_rows) {
  return std::min(n_pairs, n_pairs / chunk_rows + n_experts);
}

int64_t BytesOfGroups(int64_t n_pairs, int32_t n_experts, int32_t chunk_rows) {
  return (n_pairs + 4 + BlocksThatGroup(n_pairs) * (n_experts + 1)) * int64_t{sizeof(int32_t)} +
         MostChunks(n_pairs, n_experts, chunk_rows) * int64_t{sizeof(ExpertChunk)};
}

OwnExperts OwnOf(const ExpertMixArgs& args) { return {args.first_expert, args.up->count}; }

// Rows of a chunk whose codes both products take.
int32_t ChunkRowsOf(const ExpertMixArgs& args) {
  return std::min(ChunkRowsOfCodes(ViewOf(*args.up).layout),
                  ChunkRowsOfCodes(ViewOf(*args.down).layout));
}

}  // namespace

// At the workspace's beginning.
ExpertGroups CudaOps::GroupExperts(const ExpertMixArgs& args, int32_t chunk_rows) {
  const int64_t n_pairs = args.x.rows * args.top_k;
  ExpertGroups groups;
  groups.chunk_rows = chunk_rows;
  groups.max_chunks = static_cast<int32_t>(MostChunks(n_pairs, args.up->count, chunk_rows));
  HEDDLE_CHECK(BytesOfGroups(n_pairs, args.up->count, chunk_rows) <= step_.workspace.bytes,
               "the workspace does not hold the experts' pairs");
  groups.n_chunks = reinterpret_cast<int32_t*>(step_.workspace.data);
  groups.pairs = groups.n_chunks + 4;
  groups.chunks = reinterpret_cast<ExpertChunk*>(groups.pairs + n_pairs);
  if (BlocksThatGroup(n_pairs) > 0) {
    groups.block_counts = reinterpret_cast<int32_t*>(groups.chunks + groups.max_chunks);
    groups.counter = step_.counters;
  }
  Note(LaunchGroupExperts(args.experts, n_pairs, OwnOf(args), groups, step_.stream),
       "grouping experts");
  return groups;
}

int64_t CudaOps::RowsOfMixture(const ExpertMixArgs& args) const {
  int64_t bytes = 0;
  for (const AdapterMatrix* adapters : {args.up_adapters, args.down_adapters}) {
    if (adapters == nullptr || step_.adapters.n_segments == 0) continue;
    const AdapterParams params = AdapterParamsOf(step_, *adapters, {}, 0);
    bytes = std::max(bytes, AdapterOutputBytes(params, adapters->has_gains));
  }
  if (bytes == 0) return args.x.rows;
  const int64_t pairs = std::min(step_.workspace.bytes / 2 / bytes, kMostAdaptedPairs);
  return RowsOfPart(args.x.rows, pairs / args.top_k);
}

void CudaOps::AdaptExperts(const ExpertMixArgs& args, const AdapterMatrix* adapters, int64_t first,
                           const Workspace& scratch, ExpertLinearParams* params) {
  if (adapters == nullptr || step_.adapters.n_segments == 0) return;
  AdapterParams own = AdapterParamsOf(step_, *adapters, {}, params->linear.x.cols);
  own.kind = AdapterOutputs::kChoices;
  own.first_row += first;
  own.outputs_per_row = args.top_k;
  own.outputs_per_x = params->pairs_per_row;
  own.members = args.experts;
  own.first_member = args.first_expert;
  own.n_members = args.up->count;
  own.n_outputs = args.x.rows * args.top_k;
  own.x = params->linear.x;
  PlaceAdapterOutputs(scratch, own.n_outputs, adapters->has_gains, &own);
  LaunchAdapters(step_, own);
  SetAdapters(own, params->linear.half, &params->linear);
}

void CudaOps::ExpertMix(const ExpertMixArgs& args) {
  if (!step_.status.ok() || args.x.rows == 0) return;
  const int64_t bytes = Info(step_.activations).block_bytes;
  const int64_t count = RowsOfMixture(args);
  for (int64_t first = 0; first < args.x.rows && step_.status.ok(); first += count) {
    const int64_t rows = std::min(count, args.x.rows - first);
    ExpertMixArgs part = args;
    part.x = RowsOf(args.x, first, rows, bytes);
    part.experts += first * args.top_k;
    part.weights += first * args.top_k;
    part.inner = RowsOf(args.inner, first * args.top_k, rows * args.top_k, bytes);
    part.rows = RowsOf(args.rows, first * args.top_k, rows * args.top_k, bytes);
    part.out = RowsOf(args.out, first, rows, bytes);
    MixExperts(part, first);
  }
}

// Rows of x become codes where a library would make them of a product by itself, if there is
// memory: those of the first product in `rows`, which the second one writes, those of the second
// behind the groups, in the half of the workspace that adapters leave.
bool CudaOps::MixesCodes(const ExpertMixArgs& args) const {
  const int64_t n_pairs = args.x.rows * args.top_k;
  const DeviceWeight& up = ViewOf(*args.up);
  const DeviceWeight& down = ViewOf(*args.down);
  if (!step_.runtime.info().has_hopper_code || !IsF8(up.layout) || !IsF8(down.layout) ||
      !ExpertsTakeCodes(n_pairs, args.up->count) || !products_.TakesCodes(up) ||
      !products_.TakesCodes(down)) {
    return false;
  }
  const int64_t groups = BytesOfGroups(n_pairs, args.up->count, ChunkRowsOf(args));
  return IsAligned(args.rows, 2) && args.rows.stride == args.rows.cols &&
         BytesOfCodes(up, n_pairs) <= n_pairs * args.rows.cols * 2 &&
         BytesOfCodes(down, n_pairs) <=
             Behind({step_.workspace.data, step_.workspace.bytes / 2}, groups).bytes;
}

void CudaOps::MultiplyCodesOfExperts(ExpertLinearParams params, uint8_t* at, int64_t n_pairs,
                                     const char* what) {
  const CodeRows codes = CodesAt(at, params.linear.weight, n_pairs);
  Note(LaunchQuantizePairs(params.linear.x, params.groups.pairs, params.pairs_per_row, n_pairs,
                           codes, step_.stream),
       "quantizing rows");
  params.linear.x.rows = n_pairs;
  Note(LaunchExpertBulkCodes(params, codes, step_.FreeMultiprocessors(), step_.stream), what);
}

void CudaOps::MixExperts(const ExpertMixArgs& args, int64_t first) {
  const Stream stream = step_.stream;
  const int64_t n_pairs = args.x.rows * args.top_k;
  const auto is_float = [](const PackedStack& stack) {
    return ViewOf(stack).layout == WeightLayout::kF32 || ViewOf(stack).layout == WeightLayout::kF16;
  };
  const bool fast =
      step_.activations == DType::kBF16 && !is_float(*args.up) && !is_float(*args.down) &&
      IsAligned(args.weighs_inputs ? args.rows : args.x, 2) && IsAligned(args.inner, 2);
  // Weighed inputs lie where codes of x would.
  const bool by_codes = fast && !args.weighs_inputs && MixesCodes(args);
  ExpertGroups groups;
  if (fast) {
    const bool hopper = step_.runtime.info().has_hopper_code;
    groups = GroupExperts(
        args, by_codes ? ChunkRowsOf(args) : ChooseChunkRows(n_pairs, args.up->count, hopper));
  }
  const Workspace scratch = {step_.workspace.data + step_.workspace.bytes / 2,
                             step_.workspace.bytes / 2};
  const int64_t used = BytesOfGroups(n_pairs, args.up->count, std::max(groups.chunk_rows, 1));
  // `codes`: room for those of x.
  auto multiply = [&](ExpertLinearParams params, uint8_t* codes, const char* what) {
    params.experts = args.experts;
    params.own = OwnOf(args);
    params.groups = groups;
    if (!fast) return Note(LaunchExpertLinear(params, n_pairs, step_.activations, stream), what);
    if (by_codes) return MultiplyCodesOfExperts(params, codes, n_pairs, what);
    Note(groups.chunk_rows > kSkinnyRows ? LaunchExpertMixed(params, stream)
                                         : LaunchExpertSkinny(params, stream),
         what);
  };
  ExpertLinearParams up;
  up.linear.weight = ViewOf(*args.up);
  up.linear.x = args.x;
  if (args.weighs_inputs) {  // as many rows as pairs, in memory that the second product writes
    up.linear.x = {args.rows.data, n_pairs, args.x.cols, args.rows.stride};
    Note(LaunchWeighPairs(args.x, args.weights, args.top_k, up.linear.x, step_.activations, stream),
         "experts (inputs)");
  }
  up.linear.half = args.down->cols;
  up.linear.bias = args.up_bias;
  up.linear.epilogue = args.gated ? Epilogue::kGated : Epilogue::kNone;
  up.linear.activation = args.activation;
  up.linear.out = args.inner;
  if (args.gated && args.up_bias != nullptr) up.linear.bias_up = args.up_bias + args.down->cols;
  up.pairs_per_row = args.weighs_inputs ? 1 : args.top_k;
  up.matrix_rows = args.up->rows;
  AdaptExperts(args, args.up_adapters, first, scratch, &up);
  multiply(up, static_cast<uint8_t*>(args.rows.data), "experts (up)");
  ExpertLinearParams down;
  down.linear.weight = ViewOf(*args.down);
  down.linear.x = args.inner;
  down.linear.bias = args.down_bias;
  down.linear.out = args.rows;
  down.matrix_rows = args.down->rows;
  AdaptExperts(args, args.down_adapters, first, scratch, &down);
  multiply(down, Behind(step_.workspace, used).data, "experts (down)");
  const float* weights = args.weighs_inputs ? nullptr : args.weights;
  Note(LaunchExpertSum(args.rows, weights, args.experts, OwnOf(args), args.top_k, args.out,
                       args.adds, step_.activations, stream),
       "experts (sum)");
}

}  // namespace heddle::kernels::cuda
