// Decides how a matrix product is made: by which kernels, in how many pieces, in which part of the
// workspace.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/adapter_products.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/linear_parts.h"
#include "kernels/cuda/linear_products.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/trial_timer.h"

namespace heddle::kernels::cuda {
namespace {

// Passes of the kernel for few rows, which reads the weights in each: more are never the fastest.
constexpr int64_t kMostPasses = 4;

// For BF16 weights on sm_90a: up to two passes over them our own kernel is predicted to be faster
// than a library.
constexpr int64_t kBulkRows = 2 * kBulkBlockRows;

LinearParams ParamsOf(const LinearArgs& args) {
  LinearParams params;
  params.weight = ViewOf(*args.weight);
  params.x = args.x;
  params.bias = args.bias;
  params.epilogue = args.epilogue;
  params.activation = args.activation;
  params.out = args.out;
  params.out_f32 = args.out_f32;
  params.half = args.weight->rows / 2;
  if (args.bias != nullptr) params.bias_up = args.bias + params.half;
  return params;
}

// The ways for BF16 weights.
LinearWayList WaysForFloats(int64_t n, bool has_hopper, bool has_library) {
  const LinearWay other = has_library ? LinearWay::kLibrary : LinearWay::kTiled;
  if (!has_hopper) {
    if (n > kMostPasses * kSkinnyRows) return {other};
    return {other, LinearWay::kFewRows};
  }
  if (n > kMostBulkRows) return {has_library ? LinearWay::kLibrary : LinearWay::kBulk};
  if (n > kBulkRows && has_library) return {LinearWay::kLibrary, LinearWay::kBulk};
  return {LinearWay::kBulk, other};
}

// Whether the ranges from the first row's begin to the last row's end overlap.
bool Overlap(const Tensor& a, int64_t a_bytes, const Tensor& b, int64_t b_bytes) {
  const auto begin = [](const Tensor& t) { return static_cast<const uint8_t*>(t.data); };
  const auto end = [&](const Tensor& t, int64_t bytes) {
    return begin(t) + ((t.rows - 1) * t.stride + t.cols) * bytes;
  };
  return begin(a) < end(b, b_bytes) && begin(b) < end(a, a_bytes);
}

// Whether the heads are the first columns of the product's output, side by side, and nothing else
// happens to those.
bool AreOutputs(const RopeKvWriteArgs& heads, const LinearArgs& product) {
  if (product.epilogue != Epilogue::kNone || product.activation != Activation::kNone ||
      product.out_f32) {
    return false;
  }
  const auto* const out = static_cast<const uint16_t*>(product.out.data);
  const int64_t q_cols = int64_t{heads.n_heads} * heads.cache.head_dim;
  const int64_t kv_cols = int64_t{heads.cache.n_kv_heads} * heads.cache.head_dim;
  const auto is_at = [&](const Tensor& tensor, int64_t column) {
    return tensor.data == out + column && tensor.stride == product.out.stride;
  };
  return is_at(heads.q, 0) && is_at(heads.k, q_cols) && is_at(heads.v, q_cols + kv_cols) &&
         q_cols + 2 * kv_cols <= product.out.cols;
}

}  // namespace

void LinearProducts::Linear(const LinearArgs& args) { Multiply(args, ParamsOf(args)); }

bool LinearProducts::LinearOfHeads(const LinearArgs& args, const RopeKvWriteArgs& heads,
                                   const int64_t* kv_slot) {
  LinearParams params = ParamsOf(args);
  if (params.x.rows > kSkinnyRows || !IsFast(params) || !SkinnyTakesHeads(heads) ||
      !AreOutputs(heads, args)) {
    return false;
  }
  params.heads = {.kv_slot = kv_slot,
                  .cos_sin = heads.cos_sin,
                  .n_heads = heads.n_heads,
                  .rotary_dim = heads.cos_sin == nullptr ? 0 : heads.rotary_dim,
                  .layout = heads.layout,
                  .cache = heads.cache};
  Multiply(args, params);
  return true;
}

void LinearProducts::Multiply(const LinearArgs& args, LinearParams params) {
  HEDDLE_CHECK(args.x.cols == args.weight->cols, "linear: x and W differ in cols");
  if (!step_.status.ok() || args.x.rows == 0) return;
  if (const std::optional<CodeRows> x = TakeCodes(args)) {
    return LinearOfCodes(params, *x, step_.workspace);
  }
  const bool adapted =
      args.adapters != nullptr && AdaptersOf(step_, args.adapter_rows).n_segments > 0;
  if (adapted) {
    if (args.norm.has_value()) Norm(*args.norm);
    return LinearWithAdapters(params, args);
  }
  const LinearWay way = WayOf(params, step_.workspace);
  if (IsByCodes(way)) return LinearByCodes(way, args, params);
  if (args.norm.has_value() && FoldsNorm(params, *args.norm)) {
    params.x = args.norm->x;
    params.norm = {args.norm->weight, args.norm->weight_offset, args.norm->eps};
  } else if (args.norm.has_value()) {
    Norm(*args.norm);
  }
  LinearBy(way, params, step_.workspace);
}

void LinearProducts::Norm(const NormArgs& args) {
  if (!step_.status.ok()) return;
  step_.Note(LaunchNorm(args, NormAdaptersOf(step_, args), step_.activations, step_.stream),
             "norm");
}

bool LinearProducts::IsFast(const LinearParams& params) const {
  return step_.activations == DType::kBF16 && params.weight.layout != WeightLayout::kF32 &&
         IsAligned(params.x, 2);
}

// Whether the product of few rows applies the norm. All its blocks read x, so the output must not
// overlap it.
bool LinearProducts::FoldsNorm(const LinearParams& params, const NormArgs& norm) const {
  return norm.kind == NormKind::kRms && norm.weight != nullptr && norm.bias == nullptr &&
         reinterpret_cast<uintptr_t>(norm.weight) % 16 == 0 && IsFast(params) &&
         IsAligned(norm.x, 2) && SkinnyTakesNorm(norm.x) &&
         !Overlap(norm.x, 2, params.out, params.out_f32 ? 4 : 2);
}

// Takes as many rows at a time as half of the workspace holds the adapters' part of.
void LinearProducts::LinearWithAdapters(const LinearParams& params, const LinearArgs& args) {
  const AdapterMatrix& adapters = *args.adapters;
  AdapterParams own = AdapterParamsOf(step_, adapters, args.adapter_rows, params.x.cols);
  const int64_t row_bytes = AdapterOutputBytes(own, adapters.has_gains);
  const int64_t count = RowsOfPart(params.x.rows, step_.workspace.bytes / 2 / row_bytes);
  const Workspace rest = PlaceAdapterOutputs(step_.workspace, count, adapters.has_gains, &own);
  const int64_t first_row = own.first_row;
  for (int64_t first = 0; first < params.x.rows && step_.status.ok(); first += count) {
    LinearParams part =
        PartOf(params, first, std::min(count, params.x.rows - first), step_.activations);
    own.x = part.x;
    own.n_outputs = part.x.rows;
    own.first_row = first_row + first;
    LaunchAdapters(step_, own);
    SetAdapters(own, params.half, &part);
    LinearBy(WayOf(part, rest), part, rest);
  }
}

LinearWayList LinearProducts::WaysFor(const DeviceWeight& weight, int64_t n,
                                      const Workspace& scratch) const {
  if (n <= kSkinnyRows) return {LinearWay::kFewRows};
  const bool has_hopper = step_.runtime.info().has_hopper_code;
  if (weight.layout == WeightLayout::kBF16) {
    return WaysForFloats(n, has_hopper, IsByLibrary(weight, scratch));
  }
  LinearWayList ways;
  if (TakesCodes(weight)) {
    ways = WaysForCodes(weight, n);
  } else if (step_.always_dequantizes) {
    return {LinearWay::kDequantized};
  } else {
    ways = {ChooseManyRows(weight, n, has_hopper)};
    if (ways.front() != LinearWay::kDequantized) ways.push_back(LinearWay::kDequantized);
  }
  const LinearWay own = has_hopper ? LinearWay::kMixed : LinearWay::kFewRows;
  const bool may_pay = has_hopper || n <= kMostPasses * kSkinnyRows;
  if (ways.front() != own && may_pay) ways.push_back(own);
  return ways;
}

LinearWay LinearProducts::WayOf(const LinearParams& params, const Workspace& scratch) {
  if (!IsFast(params)) return LinearWay::kPlain;
  const LinearWayList ways = WaysFor(params.weight, params.x.rows, scratch);
  if (ways.size() == 1 || step_.ways == nullptr) return ways.front();
  const std::optional<LinearWay> fastest = step_.ways->Fastest(LinearWays::ShapeOf(params));
  if (!fastest.has_value()) {
    return step_.times_products ? TimeWays(params, ways, scratch) : ways.front();
  }
  const bool is_possible = std::find(ways.begin(), ways.end(), *fastest) != ways.end();
  return is_possible ? *fastest : ways.front();
}

// Times the ways with the operands at hand, whatever their values, into separate memory: a product
// that adds would add again with every run. A way that the device refuses is skipped; a fault of
// the device shows in the next launch. Without memory to write to, nothing is learned.
LinearWay LinearProducts::TimeWays(const LinearParams& params, const LinearWayList& ways,
                                   const Workspace& scratch) {
  step_.LeaveTape(/*for_good=*/false);
  const int64_t bytes = params.out.rows * params.out.stride * (params.out_f32 ? 4 : 2);
  absl::StatusOr<void*> out = step_.runtime.AllocateDevice(bytes);
  if (!out.ok()) return ways.front();
  LinearParams trial = params;
  trial.out.data = *out;
  TrialTimer timer(step_.runtime);
  std::vector<LinearWays::Timed> timed;
  bool any = false;
  for (const LinearWay way : ways) {
    const absl::StatusOr<int64_t> ns = timer.Time([&] {
      if (IsByCodes(way)) {
        LinearByCodes(way, trial, {.are_there = true}, scratch);
      } else {
        LinearBy(way, trial, scratch);
      }
      return std::exchange(step_.status, absl::OkStatus());
    });
    timed.push_back({way, ns.value_or(-1)});
    any = any || ns.ok();
  }
  step_.runtime.FreeDevice(*out, bytes);
  if (!any) return ways.front();
  step_.ways->Learn(LinearWays::ShapeOf(params), std::move(timed));
  return *step_.ways->Fastest(LinearWays::ShapeOf(params));
}

void LinearProducts::LinearBy(LinearWay way, const LinearParams& params, const Workspace& scratch) {
  const Stream stream = step_.stream;
  switch (way) {
    case LinearWay::kPlain:
      return step_.Note(LaunchLinearPlain(params, step_.activations, stream), "linear");
    case LinearWay::kFewRows:
      return LinearFewRows(params, scratch);
    case LinearWay::kMixed:
      return step_.Note(
          LaunchLinearMixed(Sharing(params, scratch), step_.FreeMultiprocessors(), stream),
          "linear (many rows)");
    case LinearWay::kBulk:
      return LinearByBulk(params, scratch);
    case LinearWay::kTiled:
      return step_.Note(LaunchLinearTiled(params, stream), "linear (tiled)");
    case LinearWay::kLibrary:
      return LinearByLibrary(params, scratch);
    case LinearWay::kByCodes:
    case LinearWay::kBulkCodes:
      return LinearByCodes(way, params, CodesOfX(), scratch);
    case LinearWay::kDequantized:
      return LinearDequantized(params, scratch);
  }
}

LinearParams LinearProducts::Sharing(LinearParams params, const Workspace& scratch) const {
  params.partial = reinterpret_cast<float*>(scratch.data);
  params.partial_floats = scratch.bytes / int64_t{sizeof(float)};
  params.counters = step_.counters;
  params.n_counters = kReductionCounters;
  return params;
}

void LinearProducts::LinearFewRows(const LinearParams& params, const Workspace& scratch) {
  const int64_t rows = params.x.rows;
  const int64_t count = RowsOfPart(rows, kSkinnyRows);
  for (int64_t first = 0; first < rows && step_.status.ok(); first += count) {
    const LinearParams part = PartOf(params, first, std::min(count, rows - first), DType::kBF16);
    step_.Note(LaunchLinearSkinny(Sharing(part, scratch), step_.stream), "linear (few rows)");
  }
}

bool LinearProducts::IsByLibrary(const DeviceWeight& weight, const Workspace& scratch) const {
  return step_.library != nullptr && scratch.bytes >= weight.rows * 2;
}

void LinearProducts::LinearByBulk(const LinearParams& params, const Workspace& scratch) {
  step_.Note(LaunchLinearBulk(Sharing(params, scratch), step_.FreeMultiprocessors(), step_.stream),
             "linear (bulk copies)");
}

void LinearProducts::LinearManyRows(const LinearParams& params, const Workspace& scratch) {
  if (IsByLibrary(params.weight, scratch)) return LinearByLibrary(params, scratch);
  LinearByOurs(params, scratch);
}

void LinearProducts::LinearByOurs(const LinearParams& params, const Workspace& scratch) {
  if (step_.runtime.info().has_hopper_code) return LinearByBulk(params, scratch);
  step_.Note(LaunchLinearTiled(params, step_.stream), "linear (tiled)");
}

// Writes straight to the output if nothing is left to do there; otherwise through `scratch`, as
// many rows at a time as it holds.
void LinearProducts::LinearByLibrary(const LinearParams& params, const Workspace& scratch) {
  const Stream stream = step_.stream;
  step_.LeaveTape(/*for_good=*/true);
  const bool plain = IsPlain(params);
  const int64_t rows = params.x.rows;
  const int64_t count = plain ? rows : RowsOfPart(rows, scratch.bytes / (params.weight.rows * 2));
  for (int64_t first = 0; first < rows && step_.status.ok(); first += count) {
    const LinearParams part = PartOf(params, first, std::min(count, rows - first), DType::kBF16);
    LinearParams product = part;
    if (!plain) {
      product.out = {scratch.data, part.x.rows, params.weight.rows, params.weight.rows};
      product.epilogue = Epilogue::kNone;
      product.out_f32 = false;
    }
    if (!step_.library->Multiply(product, stream)) {
      LinearByOurs(part, scratch);
    } else if (!plain) {
      step_.Note(LaunchEpilogue(part, {.sums = product.out}, stream), "epilogue");
    }
  }
}

// Converts as many weight rows as half of `scratch` holds, multiplies, and continues with the next.
void LinearProducts::LinearDequantized(const LinearParams& params, const Workspace& scratch) {
  const Stream stream = step_.stream;
  const bool gated = params.epilogue == Epilogue::kGated;
  const int64_t cols = gated ? params.half : params.weight.rows;
  const DeviceWeight layout = PackedLayout(WeightLayout::kBF16, 1, params.weight.cols);
  const int64_t half = scratch.bytes / 512 * 256;
  const int64_t chunk = half / layout.row_bytes / (gated ? 2 : 1);
  HEDDLE_CHECK(chunk > 0, "the workspace does not hold one row of a weight");
  auto* out = reinterpret_cast<uint16_t*>(scratch.data);
  for (int64_t first = 0; first < cols && step_.status.ok(); first += chunk) {
    const int64_t count = std::min(chunk, cols - first);
    LinearParams part = params;
    part.weight = layout;
    part.weight.rows = gated ? 2 * count : count;
    part.weight.data = scratch.data;
    part.reads_ahead = false;
    part.half = count;
    if (params.bias != nullptr) part.bias += first;
    if (params.bias_up != nullptr) part.bias_up += first;
    if (params.delta != nullptr) part.delta += first;
    if (params.delta_up != nullptr) part.delta_up += first;
    if (params.gains != nullptr) part.gains += first;
    if (params.gains_up != nullptr) part.gains_up += first;
    part.out.data = params.out_f32 ? static_cast<void*>(params.out.row<float>(0) + first)
                                   : static_cast<void*>(params.out.row<uint16_t>(0) + first);
    step_.Note(LaunchDequantize(params.weight, first, count, out, stream), "dequantizing");
    if (gated) {
      step_.Note(LaunchDequantize(params.weight, params.half + first, count,
                                  out + count * layout.row_bytes / 2, stream),
                 "dequantizing");
    }
    LinearManyRows(part, {scratch.data + half, half});
  }
}

}  // namespace heddle::kernels::cuda
