// The rest of a product after a library's multiplication: scales, adapters, bias, activation, gate,
// residual. It reads the product, [n, weight rows], and stores the outputs, or codes of them for
// the next product. It is memory-bound, so a thread moves 16 bytes or more at a time if rows allow
// it.
#include "kernels/cuda/linear/code_rows.cuh"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 8;  // columns of a thread
// Rows in BlockY; more of them in BlockZ, as both are 16 bits wide.
constexpr int kGridRows = 32768;

// A row of 14336 codes has 64 KiB of kept outputs: three such blocks fit into a multiprocessor, and
// their 48 warps have enough loads in flight.
constexpr int kMaxCodeWarps = 16;
static_assert(kWide == code_rows::kColumns);

struct EpilogueParams {
  LinearParams linear;
  LibraryProduct product;
};

template <WeightLayout kLayout>
HEDDLE_HOST_DEVICE int KeptFloats(const EpilogueParams& p, int threads) {
  return TraitsOf(kLayout).is_tiled
             ? 0
             : code_rows::Kept::Floats(p.linear.out_codes.row_bytes, threads);
}

HEDDLE_DEVICE float SumOf(int32_t value) { return static_cast<float>(value); }
HEDDLE_DEVICE float SumOf(float value) { return value; }
HEDDLE_DEVICE float SumOf(BFloat16 value) { return ToFloat(value); }

// The products of row t of x and rows [r, r + kWidth) of the weight.
template <typename T, int kWidth>
HEDDLE_DEVICE Group<float, kWidth> ProductsAt(const LibraryProduct& product, int64_t t, int64_t r) {
  const Group<T, kWidth> sums = LoadGroup<kWidth>(product.sums.row<T>(t) + r);
  Group<float, kWidth> out;
  HEDDLE_UNROLL
  for (int e = 0; e < kWidth; ++e) out.item[e] = SumOf(sums.item[e]);
  if (product.x_scales == nullptr) return out;
  const float x_scale = product.x_scales[t];
  const auto w_scales = LoadAnywhere<kWidth>(product.w_scales + r);
  HEDDLE_UNROLL
  for (int e = 0; e < kWidth; ++e) out.item[e] *= x_scale * w_scales.item[e];
  return out;
}

// T is the product's type, O the output's.
template <typename T, typename O, int kWidth>
HEDDLE_KERNEL EpilogueKernel(HEDDLE_PARAMS(EpilogueParams, p)) {
  StartInTurn();
  const int64_t r = (static_cast<int64_t>(BlockX()) * kThreads + ThreadX()) * kWidth;
  const int64_t t = static_cast<int64_t>(BlockZ()) * kGridRows + BlockY();
  if (r >= OutputCols(p.linear) || t >= p.linear.x.rows) return;
  Group<float, kWidth> up = {};
  if (p.linear.epilogue == Epilogue::kGated) {
    up = ProductsAt<T, kWidth>(p.product, t, r + p.linear.half);
  }
  Group<float, kWidth> y = ProductsAt<T, kWidth>(p.product, t, r);
  FinishOutputs<kWidth>(p.linear, t, r, y, up);
  O* to = p.linear.out.row<O>(t) + r;
  const bool adds = p.linear.epilogue == Epilogue::kAdd;
  Group<O, kWidth> out = {};
  if (adds) out = LoadGroup<kWidth>(to);
  HEDDLE_UNROLL
  for (int e = 0; e < kWidth; ++e) {
    out.item[e] = RoundTo(adds ? ToFloat(out.item[e]) + y.item[e] : y.item[e], O());
  }
  StoreGroup(to, out);
}

// Whether groups of kWide columns begin at multiples of 16 bytes.
bool IsWide(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && tensor.stride % kWide == 0;
}

// Outputs [r, r + 8) of row t; zeros beyond the last.
template <typename T>
HEDDLE_DEVICE code_rows::Columns OutputsAt(const EpilogueParams& p, int64_t t, int64_t r) {
  code_rows::Columns out = {};
  if (r >= OutputCols(p.linear)) return out;
  Group<float, kWide> up = {};
  if (p.linear.epilogue == Epilogue::kGated) {
    up = ProductsAt<T, kWide>(p.product, t, r + p.linear.half);
  }
  out = ProductsAt<T, kWide>(p.product, t, r);
  FinishOutputs<kWide>(p.linear, t, r, out, up);
  return out;
}

// One block per row: stores the outputs as codes for the product that reads them next.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL HEDDLE_BOUNDS(32 * kMaxCodeWarps, 3)
    EpilogueCodesKernel(HEDDLE_PARAMS(EpilogueParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> scratch = arena.Take<float>(kMaxCodeWarps);
  const code_rows::Kept kept(arena.Take<float>(KeptFloats<kLayout>(p, ThreadCount())));
  code_rows::StoreRowOnce<kLayout>(p.linear.out_codes, BlockX(), scratch, kept,
                                   [&](int64_t r) { return OutputsAt<T>(p, BlockX(), r); });
}

template <typename T>
Error LaunchCodes(const EpilogueParams& params, Stream stream) {
  const CodeRows& to = params.linear.out_codes;
  const int warps = CeilDiv(to.row_bytes / kWide, 32);
  LaunchShape shape = {.grid_x = static_cast<int>(params.linear.x.rows),
                       .threads = 32 * (warps < kMaxCodeWarps ? warps : kMaxCodeWarps)};
  return code_rows::ForLayout(to.layout, [&]<WeightLayout kLayout>() {
    shape.shared_bytes = SharedBytesFor<float>(kMaxCodeWarps) +
                         SharedBytesFor<float>(KeptFloats<kLayout>(params, shape.threads));
    return Launch(EpilogueCodesKernel<T, kLayout>, shape, stream, params);
  });
}

template <typename T, typename O>
Error LaunchTyped(const EpilogueParams& params, Stream stream) {
  const LinearParams& linear = params.linear;
  const bool wide =
      IsWide(linear.out) && IsWide(params.product.sums) && OutputCols(linear) % kWide == 0;
  const LaunchShape shape = {
      .grid_x = CeilDiv(OutputCols(linear), int64_t{kThreads} * (wide ? kWide : 1)),
      .grid_y = static_cast<int>(linear.x.rows < kGridRows ? linear.x.rows : kGridRows),
      .grid_z = CeilDiv(linear.x.rows, kGridRows),
      .threads = kThreads};
  return wide ? Launch(EpilogueKernel<T, O, kWide>, shape, stream, params)
              : Launch(EpilogueKernel<T, O, 1>, shape, stream, params);
}

template <typename T>
Error LaunchOf(const EpilogueParams& params, Stream stream) {
  if (params.linear.out_codes.codes != nullptr) return LaunchCodes<T>(params, stream);
  return params.linear.out_f32 ? LaunchTyped<T, float>(params, stream)
                               : LaunchTyped<T, BFloat16>(params, stream);
}

}  // namespace

Error LaunchEpilogue(const LinearParams& params, const LibraryProduct& product, Stream stream) {
  const EpilogueParams all = {params, product};
  switch (product.type) {
    case LibraryProduct::Type::kF32:
      return LaunchOf<float>(all, stream);
    case LibraryProduct::Type::kInt32:
      return LaunchOf<int32_t>(all, stream);
    default:
      return LaunchOf<BFloat16>(all, stream);
  }
}

}  // namespace heddle::kernels::cuda
