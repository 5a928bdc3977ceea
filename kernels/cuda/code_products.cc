// Products of 8-bit codes: weights of kF8Row, kInt8Row and kF8Block with many rows of x, by a
// library or, FP8, by our own kernel. The rows are quantised on the way, or were left as codes by
// the product that made them (LinearArgs::reader).
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/linear_parts.h"
#include "kernels/cuda/linear_products.h"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignment = 16;  // of what norms read

// Columns of a row that a block may keep on this device (see code_rows::Kept): those of whole
// rounds of the most threads, beside the memory in which they find the row's scale.
int64_t MaxKept(const DeviceInfo& device) {
  constexpr int64_t kTurn = 4096, kScratch = 1024;
  return std::min(kMaxKeptCodes, (device.max_shared_bytes - kScratch) / kFloat / kTurn * kTurn);
}

NormArgs NormOfRows(NormArgs norm, int64_t first, int64_t count) {
  norm.x = RowsOf(norm.x, first, count, 2);
  norm.out = RowsOf(norm.out, first, count, 2);
  return norm;
}

}  // namespace

bool LinearProducts::TakesCodes(const DeviceWeight& weight) const {
  if (step_.library == nullptr || !step_.library->TakesCodes(weight)) return false;
  return weight.layout != WeightLayout::kInt8Row || weight.takes_int8_x;
}

LinearWayList LinearProducts::WaysForCodes(const DeviceWeight& weight, int64_t n) const {
  const bool bulk = step_.runtime.info().has_hopper_code && IsF8(weight.layout);
  if (!bulk || n > kMostBulkRows) return {LinearWay::kByCodes};
  if (n > MostBulkCodes(weight)) return {LinearWay::kByCodes, LinearWay::kBulkCodes};
  return {LinearWay::kBulkCodes, LinearWay::kByCodes};
}

// A product whose ways are still to be timed needs x itself.
std::optional<LinearWay> LinearProducts::CodesWay(const DeviceWeight& weight, int64_t n) const {
  const LinearWayList ways = WaysFor(weight, n, step_.workspace);
  LinearWay way = ways.front();
  if (ways.size() > 1 && step_.ways != nullptr) {
    const auto fastest = step_.ways->Fastest({weight.layout, weight.rows, weight.cols, n});
    if (!fastest.has_value()) return std::nullopt;
    way = *fastest;
  }
  return IsByCodes(way) ? std::optional(way) : std::nullopt;
}

// Leaves codes in the memory of `out`, instead of `out`, if the only product that reads it wants
// codes and this one passes through the epilogue with whole rows.
CodeRows LinearProducts::LeaveCodes(const LinearArgs& args) {
  if (args.reader == nullptr || step_.adapters.n_segments > 0 || args.out_f32) return {};
  HEDDLE_CHECK(args.reader->cols == args.out.cols,
               "linear: the reader's cols are not the output's");
  const DeviceWeight& reader = ViewOf(*args.reader);
  const Tensor& out = args.out;
  const bool fits = IsAligned(out, 2) && out.stride == out.cols &&
                    BytesOfCodes(reader, out.rows) <= out.rows * out.cols * 2;
  const bool makes =
      args.epilogue != Epilogue::kAdd && reader.row_bytes <= MaxKept(step_.runtime.info());
  // Then the reader need not take its rows in parts.
  const bool whole = LibraryRows(reader, out.rows) * reader.rows * kFloat <= step_.workspace.bytes;
  if (!fits || !makes || !whole || !CodesWay(reader, out.rows).has_value()) return {};
  const CodeRows codes = CodesAt(static_cast<uint8_t*>(out.data), reader, out.rows);
  left_.push_back({out.data, args.reader, codes});
  return codes;
}

std::optional<CodeRows> LinearProducts::TakeCodes(const LinearArgs& args) {
  const auto left = std::find_if(left_.begin(), left_.end(),
                                 [&](const LeftCodes& l) { return l.tensor == args.x.data; });
  if (left == left_.end()) return std::nullopt;
  HEDDLE_CHECK(left->reader == args.weight, "linear: codes that were left for another product");
  const CodeRows codes = left->codes;
  left_.erase(left);
  return codes;
}

bool LinearProducts::NormsToCodes(const NormArgs& norm, const DeviceWeight& weight) const {
  const auto is_aligned = [](const float* data) {
    return reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
  };
  return IsAligned(norm.x, 2) && norm.residual.data == nullptr && is_aligned(norm.weight) &&
         is_aligned(norm.bias) && weight.row_bytes <= MaxKept(step_.runtime.info());
}

// Multiplies by codes. Rows of x that a norm still has to make become codes directly if possible.
// The library's products pass through an epilogue that may leave codes; our own store outputs.
void LinearProducts::LinearByCodes(LinearWay way, const LinearArgs& args, LinearParams params) {
  if (way == LinearWay::kByCodes) params.out_codes = LeaveCodes(args);
  const bool fused = args.norm.has_value() && NormsToCodes(*args.norm, params.weight);
  if (args.norm.has_value() && !fused) Norm(*args.norm);
  LinearByCodes(way, params, {.norm = fused ? &*args.norm : nullptr}, step_.workspace);
}

void LinearProducts::MakeCodes(const LinearParams& part, const std::optional<NormArgs>& norm,
                               const CodeRows& x) {
  step_.Note(norm.has_value() ? LaunchNormCodes(*norm, x, step_.stream)
                              : LaunchQuantizeRows(part.x, x, step_.stream),
             "quantizing rows");
}

// Takes as many rows at a time as `scratch` holds the codes of, and what is behind the product: for
// the library all of it, for our own blocks' parts, which get half.
void LinearProducts::LinearByCodes(LinearWay way, const LinearParams& params, const CodesOfX& from,
                                   const Workspace& scratch) {
  const DeviceWeight& weight = params.weight;
  const bool is_library = way == LinearWay::kByCodes;
  const int64_t multiple = LibraryRows(weight, 1);
  const int64_t sums = is_library ? weight.rows * kFloat : 0;  // bytes for a row of x
  const int64_t each = sums + ScalesOfRow(weight) * kFloat + weight.row_bytes;
  const int64_t room = is_library ? scratch.bytes : scratch.bytes / 2;
  const int64_t at_once = (room - 512) / each / multiple * multiple;
  if (at_once <= 0) {
    if (from.norm != nullptr) Norm(*from.norm);
    return LinearWithoutCodes(params, scratch);
  }
  const int64_t count = RowsOfPart(params.x.rows, at_once, multiple);
  uint8_t* codes = Behind(scratch, count * sums).data;
  const Workspace rest = is_library ? scratch : Behind(scratch, BytesOfCodes(weight, count));
  for (int64_t first = 0; first < params.x.rows && step_.status.ok(); first += count) {
    const LinearParams part =
        PartOf(params, first, std::min(count, params.x.rows - first), DType::kBF16);
    const CodeRows x = CodesAt(codes, weight, part.x.rows);
    std::optional<NormArgs> own;
    if (from.norm != nullptr) own = NormOfRows(*from.norm, first, part.x.rows);
    if (!from.are_there) MakeCodes(part, own, x);
    if (MultiplyCodes(way, part, x, rest)) continue;
    if (own.has_value()) Norm(*own);
    LinearWithoutCodes(part, scratch);
  }
}

// Multiplies rows of x that were left as codes. If the library turns out to have no such product,
// they are converted back to BF16.
void LinearProducts::LinearOfCodes(const LinearParams& params, const CodeRows& x,
                                   const Workspace& scratch) {
  const LinearWay way = CodesWay(params.weight, params.x.rows).value_or(LinearWay::kByCodes);
  if (MultiplyCodes(way, params, x, scratch)) return;
  const int64_t cols = params.x.cols, rows = params.x.rows;
  const int64_t count = RowsOfPart(rows, scratch.bytes / 2 / (cols * 2));
  for (int64_t first = 0; first < rows && step_.status.ok(); first += count) {
    LinearParams part = PartOf(params, first, std::min(count, rows - first), DType::kBF16);
    part.x = {scratch.data, part.x.rows, cols, cols};
    step_.Note(LaunchRestoreRows(RowsFrom(x, first), part.x, step_.stream), "restoring rows");
    LinearWithoutCodes(part, Behind(scratch, count * cols * 2));
  }
}

// Multiplies in BF16. An output that was to become codes does so in a separate pass.
void LinearProducts::LinearWithoutCodes(const LinearParams& params, const Workspace& scratch) {
  if (params.out_codes.codes == nullptr) return LinearDequantized(params, scratch);
  const int64_t cols = params.out.cols, rows = params.x.rows;
  const int64_t count = RowsOfPart(rows, scratch.bytes / 2 / (cols * 2));
  for (int64_t first = 0; first < rows && step_.status.ok(); first += count) {
    LinearParams part = PartOf(params, first, std::min(count, rows - first), DType::kBF16);
    const CodeRows codes = part.out_codes;
    part.out_codes = {};
    part.out = {scratch.data, part.x.rows, cols, cols};
    LinearDequantized(part, Behind(scratch, count * cols * 2));
    step_.Note(LaunchQuantizeRows(part.out, codes, step_.stream), "quantizing rows");
  }
}

// Our own kernel does all of it. The library applies the scales if it can, straight to the output
// if nothing else is left to do; otherwise the epilogue does, from sums in `scratch`.
bool LinearProducts::MultiplyCodes(LinearWay way, const LinearParams& params, const CodeRows& x,
                                   const Workspace& scratch) {
  if (way == LinearWay::kBulkCodes) {
    step_.Note(LaunchLinearBulkCodes(Sharing(params, scratch), x, step_.FreeMultiprocessors(),
                                     step_.stream),
               "linear (bulk copies of codes)");
    return true;
  }
  step_.LeaveTape(/*for_good=*/true);
  const DeviceWeight& weight = params.weight;
  const int64_t n = LibraryRows(weight, params.x.rows);
  const bool direct = IsPlain(params) && n == params.x.rows;
  const Tensor product = {scratch.data, n, weight.rows, weight.rows};
  CodeProduct codes = {.weight = weight,
                       .x = x,
                       .n = n,
                       .out = direct ? params.out : product,
                       .out_f32 = params.out_f32,
                       .adds = direct && params.epilogue == Epilogue::kAdd};
  LibraryProduct left = {.sums = product};
  if (step_.library->MultiplyCodes(codes, step_.stream)) {
    if (params.out_f32) left.type = LibraryProduct::Type::kF32;
    if (!direct) step_.Note(LaunchEpilogue(params, left, step_.stream), "epilogue");
    return true;
  }
  codes.out = product;
  if (!step_.library->SumCodes(codes, step_.stream)) return false;
  left.type = IsF8(weight.layout) ? LibraryProduct::Type::kF32 : LibraryProduct::Type::kInt32;
  left.x_scales = x.scales;
  left.w_scales = weight.row_factors;
  step_.Note(LaunchEpilogue(params, left, step_.stream), "epilogue");
  return true;
}

}  // namespace heddle::kernels::cuda
