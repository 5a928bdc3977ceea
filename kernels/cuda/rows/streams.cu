// Alternating updates, and gates of which few stay (kernels/ops.h). A row's results depend on the
// row alone. Predictions and corrections read and write each stream once, a thread a few columns of
// all streams; the other two have a block for each row, which reads it once for each mean and once
// more, from the L1 or L2, to change it.
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/rows_shape.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kStreamThreads = 128;
constexpr int kMostWarps = 32;  // of a block that has a row
constexpr float kLeastMeanSquare = 1e-5f;

// The arguments of both ops, without padding: launches are compared with those of graphs.
struct StreamsParams {
  Tensor streams;
  Tensor factors;
  Tensor computed;
  int64_t width;  // of a stream
  int32_t count;
  int32_t active;
};

// BlockX: a row. BlockY: kStreamThreads groups of kWidth columns of each stream.
template <typename T, int kWidth>
HEDDLE_KERNEL PredictStreamsKernel(HEDDLE_PARAMS(StreamsParams, p)) {
  StartInTurn();
  const int64_t i = (static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX()) * kWidth;
  if (i >= p.width) return;
  T* row = p.streams.row<T>(BlockX()) + i;
  const float* factors = p.factors.row<float>(BlockX());
  Group<T, kWidth> before[kMaxStreams] = {};
  HEDDLE_UNROLL
  for (int q = 0; q < kMaxStreams; ++q) {
    if (q < p.count) before[q] = LoadGroup<kWidth>(row + q * p.width);
  }
  HEDDLE_UNROLL
  for (int s = 0; s < kMaxStreams; ++s) {
    if (s >= p.count) continue;
    float sum[kWidth];
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) sum[j] = ToFloat(before[s].item[j]);
    HEDDLE_UNROLL
    for (int q = 0; q < kMaxStreams; ++q) {
      if (q >= p.count) continue;
      const float factor = factors[s * p.count + q];
      HEDDLE_UNROLL
      for (int j = 0; j < kWidth; ++j) sum[j] += factor * ToFloat(before[q].item[j]);
    }
    Group<T, kWidth> after;
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) after.item[j] = RoundTo(sum[j], T());
    StoreGroup(row + s * p.width, after);
  }
}

template <typename T, int kWidth>
HEDDLE_KERNEL CorrectStreamsKernel(HEDDLE_PARAMS(StreamsParams, p)) {
  StartInTurn();
  const int64_t i = (static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX()) * kWidth;
  if (i >= p.width) return;
  T* row = p.streams.row<T>(BlockX()) + i;
  const float* factors = p.factors.row<float>(BlockX());
  const auto computed = LoadGroup<kWidth>(p.computed.row<T>(BlockX()) + i);
  const auto active = LoadGroup<kWidth>(row + p.active * p.width);
  float change[kWidth];
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    change[j] = ToFloat(computed.item[j]) - ToFloat(active.item[j]);
  }
  for (int s = 0; s < p.count; ++s) {
    const float factor = 1.0f + factors[s];
    auto own = LoadGroup<kWidth>(row + s * p.width);
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      own.item[j] = RoundTo(ToFloat(own.item[j]) + factor * change[j], T());
    }
    StoreGroup(row + s * p.width, own);
  }
}

// The sum of term(x) over this thread's columns of a row.
template <int kWidth, typename T, typename Term>
HEDDLE_DEVICE float SumOf(const T* row, int64_t cols, Term term) {
  float sum = 0;
  for (int64_t i = int64_t{ThreadX()} * kWidth; i < cols; i += int64_t{ThreadCount()} * kWidth) {
    const auto values = LoadGroup<kWidth>(row + i);
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) sum += term(ToFloat(values.item[j]));
  }
  return sum;
}

HEDDLE_DEVICE float Root(float x) { return x > 0 ? x * Rsqrt(x) : 0.0f; }

struct MatchParams {
  Tensor like;
  Tensor x;
};

template <typename T, int kWidth>
HEDDLE_KERNEL HEDDLE_BOUNDS(32 * kMostWarps, 1)
    MatchMagnitudeKernel(HEDDLE_PARAMS(MatchParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> scratch = arena.Take<float>(kMostWarps);
  const auto square = [](float x) { return x * x; };
  T* row = p.x.row<T>(BlockX());
  const float wanted = SumOf<kWidth>(p.like.row<T>(BlockX()), p.like.cols, square);
  const float found = SumOf<kWidth>(row, p.x.cols, square);
  const float like = BlockSum(wanted, scratch) / static_cast<float>(p.like.cols);
  const float own = BlockSum(found, scratch) / static_cast<float>(p.x.cols);
  const float factor = Root(like) * Rsqrt(Max(own, kLeastMeanSquare));
  for (int64_t i = int64_t{ThreadX()} * kWidth; i < p.x.cols;
       i += int64_t{ThreadCount()} * kWidth) {
    auto values = LoadGroup<kWidth>(row + i);
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      values.item[j] = RoundTo(ToFloat(values.item[j]) * factor, T());
    }
    StoreGroup(row + i, values);
  }
}

struct SparseGateParams {
  Tensor gate_up;
  float deviations;
  int32_t activation;
};

// Writes the results of this thread's columns over their gates.
template <Activation kActivation, int kWidth, typename T>
HEDDLE_DEVICE void GateAbove(float cut, T* gates, int64_t inter) {
  for (int64_t i = int64_t{ThreadX()} * kWidth; i < inter; i += int64_t{ThreadCount()} * kWidth) {
    auto values = LoadGroup<kWidth>(gates + i);
    const auto ups = LoadGroup<kWidth>(gates + inter + i);
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      const float gate = ToFloat(values.item[j]) - cut;
      const float result = gate > 0 ? Gate<kActivation>(gate, ToFloat(ups.item[j])) : 0.0f;
      values.item[j] = RoundTo(result, T());
    }
    StoreGroup(gates + i, values);
  }
}

template <typename T, int kWidth>
HEDDLE_KERNEL HEDDLE_BOUNDS(32 * kMostWarps, 1)
    SparseGateKernel(HEDDLE_PARAMS(SparseGateParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> scratch = arena.Take<float>(kMostWarps);
  const int64_t inter = p.gate_up.cols / 2;
  const float n = static_cast<float>(inter);
  T* gates = p.gate_up.row<T>(BlockX());
  const float mean = BlockSum(SumOf<kWidth>(gates, inter, [](float x) { return x; }), scratch) / n;
  const float squares =
      SumOf<kWidth>(gates, inter, [mean](float x) { return (x - mean) * (x - mean); });
  const float cut = mean + p.deviations * Root(BlockSum(squares, scratch) / n);
  ForFunction(static_cast<Activation>(p.activation),
              [&]<Activation kActivation>() { GateAbove<kActivation, kWidth>(cut, gates, inter); });
}

// Whether columns `first`, `first` + kWide ... of all rows may be moved kWide at a time, for
// columns in parts of `width`.
template <typename T>
bool AreGroups(const Tensor& tensor, int64_t width) {
  constexpr int kWide = 16 / sizeof(T);
  return width % kWide == 0 && IsAligned<T>(tensor, kWide);
}

// A block that has a row with so many groups.
LaunchShape RowShape(int64_t rows, int64_t groups) {
  const int64_t warps = (groups + 31) / 32;
  return {.grid_x = static_cast<int>(rows),
          .threads = 32 * static_cast<int>(warps < 1            ? 1
                                           : warps > kMostWarps ? kMostWarps
                                                                : warps),
          .shared_bytes = SharedBytesFor<float>(kMostWarps)};
}

StreamsParams ParamsOf(const StreamsArgs& args) {
  return {args.streams, args.factors, args.computed, args.streams.cols / args.count,
          args.count,   args.active};
}

}  // namespace

Error LaunchPredictStreams(const StreamsArgs& args, DType act, Stream stream) {
  StreamsParams params = ParamsOf(args);
  params.computed = {};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = AreGroups<T>(args.streams, params.width);
    const LaunchShape shape =
        RowsShape(args.streams.rows, params.width / (wide ? kWide : 1), kStreamThreads);
    return wide ? Launch(PredictStreamsKernel<T, kWide>, shape, stream, params)
                : Launch(PredictStreamsKernel<T, 1>, shape, stream, params);
  });
}

Error LaunchCorrectStreams(const StreamsArgs& args, DType act, Stream stream) {
  const StreamsParams params = ParamsOf(args);
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide =
        AreGroups<T>(args.streams, params.width) && AreGroups<T>(args.computed, params.width);
    const LaunchShape shape =
        RowsShape(args.streams.rows, params.width / (wide ? kWide : 1), kStreamThreads);
    return wide ? Launch(CorrectStreamsKernel<T, kWide>, shape, stream, params)
                : Launch(CorrectStreamsKernel<T, 1>, shape, stream, params);
  });
}

Error LaunchMatchMagnitude(Tensor like, Tensor x, DType act, Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = IsAligned<T>(like, kWide) && IsAligned<T>(x, kWide);
    const LaunchShape shape = RowShape(x.rows, x.cols / (wide ? kWide : 1));
    const MatchParams params = {like, x};
    return wide ? Launch(MatchMagnitudeKernel<T, kWide>, shape, stream, params)
                : Launch(MatchMagnitudeKernel<T, 1>, shape, stream, params);
  });
}

Error LaunchSparseGate(const SparseGateArgs& args, DType act, Stream stream) {
  const SparseGateParams params = {args.gate_up, args.deviations,
                                   static_cast<int32_t>(args.activation)};
  const int64_t inter = args.gate_up.cols / 2;
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = AreGroups<T>(args.gate_up, inter);
    const LaunchShape shape = RowShape(args.gate_up.rows, inter / (wide ? kWide : 1));
    return wide ? Launch(SparseGateKernel<T, kWide>, shape, stream, params)
                : Launch(SparseGateKernel<T, 1>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
