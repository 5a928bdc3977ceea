// Ops that change each element of a row by itself.
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/rows_shape.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;

struct SharpenParams {
  const int32_t* positions;
  SharpenArgs args;
};

// Here and below, BlockX: a row. BlockY: kThreads of its columns.
template <typename T>
HEDDLE_KERNEL SharpenKernel(HEDDLE_PARAMS(SharpenParams, p)) {
  StartInTurn();
  const int64_t i = static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX();
  if (i >= p.args.x.cols) return;
  const int times = (p.positions[BlockX()] + p.args.offset) / p.args.length;
  if (times == 0) return;
  const float factor = 1.0f + p.args.factor * (Log2(1.0f + static_cast<float>(times)) * kLn2);
  T* at = p.args.x.row<T>(BlockX()) + i;
  *at = RoundTo(ToFloat(*at) * factor, T());
}

template <typename T>
HEDDLE_KERNEL XieluKernel(HEDDLE_PARAMS(XieluArgs, p)) {
  StartInTurn();
  const int64_t i = static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX();
  if (i >= p.x.cols) return;
  T* at = p.x.row<T>(BlockX()) + i;
  const float x = ToFloat(*at);
  const float low = x < p.eps ? x : p.eps;
  // The series where the difference of exp and 1 would cancel.
  const float less_one = low > -0.03125f
                             ? low * (1.0f + low * (0.5f + low * (1.0f / 6 + low * (1.0f / 24))))
                             : Exp2(low * kLog2E) - 1.0f;
  const float bent = x > 0 ? p.alpha_positive * x * x : p.alpha_negative * (less_one - x);
  *at = RoundTo(bent + p.beta * x, T());
}

struct AddSegmentsParams {
  const int32_t* segments;
  SegmentArgs args;
};

// A segment that the table lacks adds nothing, instead of foreign memory.
template <typename T>
HEDDLE_KERNEL AddSegmentsKernel(HEDDLE_PARAMS(AddSegmentsParams, p)) {
  StartInTurn();
  const int64_t i = static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX();
  const int64_t segment = p.segments == nullptr ? 0 : p.segments[BlockX()];
  if (i >= p.args.x.cols || segment < 0 || segment >= p.args.n_segments) return;
  T* at = p.args.x.row<T>(BlockX()) + i;
  *at = RoundTo(ToFloat(*at) + p.args.table[segment * p.args.width + i % p.args.width], T());
}

struct WeighParams {
  Tensor x;
  const float* weights;
  int32_t top_k;
  Tensor out;
};

// BlockX: a pair of a row and one of its experts. BlockY: kThreads of its columns.
template <typename T>
HEDDLE_KERNEL WeighPairsKernel(HEDDLE_PARAMS(WeighParams, p)) {
  StartInTurn();
  const int64_t pair = BlockX();
  const int64_t c = static_cast<int64_t>(BlockY()) * kThreads + ThreadX();
  if (c >= p.x.cols) return;
  const float value = ToFloat(p.x.row<T>(pair / p.top_k)[c]);
  p.out.row<T>(pair)[c] = RoundTo(value * p.weights[pair], T());
}

// x *= sigmoid(gate).
struct GateElementsParams {
  Tensor gate;
  Tensor x;
};

template <typename T>
HEDDLE_KERNEL GateElementsKernel(HEDDLE_PARAMS(GateElementsParams, p)) {
  StartInTurn();
  const int64_t i = static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX();
  if (i >= p.x.cols) return;
  T* at = p.x.row<T>(BlockX()) + i;
  *at = RoundTo(ToFloat(*at) / (1.0f + Exp(-ToFloat(p.gate.row<T>(BlockX())[i]))), T());
}

struct ScaleElementsParams {
  Tensor x;
  float factor;
};

template <typename T>
HEDDLE_KERNEL ScaleElementsKernel(HEDDLE_PARAMS(ScaleElementsParams, p)) {
  StartInTurn();
  const int64_t i = static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX();
  if (i >= p.x.cols) return;
  T* at = p.x.row<T>(BlockX()) + i;
  *at = RoundTo(ToFloat(*at) * p.factor, T());
}

struct MultiplyParams {
  Tensor factor;
  Tensor x;
};

// Factors are F; a thread has kWidth columns.
template <typename T, typename F, int kWidth>
HEDDLE_KERNEL MultiplyKernel(HEDDLE_PARAMS(MultiplyParams, p)) {
  StartInTurn();
  const int64_t i = (static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX()) * kWidth;
  if (i >= p.x.cols) return;
  T* at = p.x.row<T>(BlockX()) + i;
  auto values = LoadGroup<kWidth>(at);
  const auto factors = LoadGroup<kWidth>(p.factor.row<F>(BlockX()) + i);
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    values.item[j] = RoundTo(ToFloat(values.item[j]) * ToFloat(factors.item[j]), T());
  }
  StoreGroup(at, values);
}

template <typename T, typename F>
Error LaunchMultiplyBy(F, const MultiplyParams& params, Stream stream) {
  constexpr int kWide = 16 / sizeof(T);
  if (IsAligned<T>(params.x, kWide) && IsAligned<F>(params.factor, 16 / sizeof(F))) {
    return Launch(MultiplyKernel<T, F, kWide>,
                  RowsShape(params.x.rows, params.x.cols / kWide, kThreads), stream, params);
  }
  return Launch(MultiplyKernel<T, F, 1>, RowsShape(params.x.rows, params.x.cols, kThreads), stream,
                params);
}

struct SquashParams {
  Squash kind;
  Tensor x;
};

template <typename T>
HEDDLE_KERNEL SquashKernel(HEDDLE_PARAMS(SquashParams, p)) {
  StartInTurn();
  const int64_t i = static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX();
  if (i >= p.x.cols) return;
  T* at = p.x.row<T>(BlockX()) + i;
  const float x = ToFloat(*at);
  *at = RoundTo(p.kind == Squash::kTanh ? Tanh(x) : 1.0f / (1.0f + Exp(-x)), T());
}

LaunchShape ShapeOf(const Tensor& x) { return RowsShape(x.rows, x.cols, kThreads); }

}  // namespace

Error LaunchSharpen(const DeviceBatch& batch, const SharpenArgs& args, DType act, Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(SharpenKernel<T>, ShapeOf(args.x), stream, SharpenParams{batch.positions, args});
  });
}

Error LaunchAddSegments(const int32_t* segments, const SegmentArgs& args, DType act,
                        Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(AddSegmentsKernel<T>, ShapeOf(args.x), stream, AddSegmentsParams{segments, args});
  });
}

Error LaunchWeighPairs(Tensor x, const float* weights, int32_t top_k, Tensor out, DType act,
                       Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(WeighPairsKernel<T>, RowsShape(out.rows, x.cols, kThreads), stream,
                  WeighParams{x, weights, top_k, out});
  });
}

Error LaunchXielu(const XieluArgs& args, DType act, Stream stream) {
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(XieluKernel<T>, ShapeOf(args.x), stream, args); });
}

Error LaunchGateElements(Tensor gate, Tensor x, DType act, Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(GateElementsKernel<T>, ShapeOf(x), stream, GateElementsParams{gate, x});
  });
}

Error LaunchScaleElements(Tensor x, float factor, DType act, Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(ScaleElementsKernel<T>, ShapeOf(x), stream, ScaleElementsParams{x, factor});
  });
}

Error LaunchMultiply(Tensor factor, Tensor x, DType act, Stream stream) {
  const MultiplyParams params = {factor, x};
  return ForActivation(act, [&]<typename T>(T) {
    return factor.stride == 0 ? LaunchMultiplyBy<T>(float(), params, stream)
                              : LaunchMultiplyBy<T>(T(), params, stream);
  });
}

Error LaunchSquash(Squash kind, Tensor x, DType act, Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(SquashKernel<T>, ShapeOf(x), stream, SquashParams{kind, x});
  });
}

}  // namespace heddle::kernels::cuda
