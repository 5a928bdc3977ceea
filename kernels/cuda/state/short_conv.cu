// Gated short convolutions (ShortConvArgs). A thread has one channel of one row. Inputs of rows of
// this step are computed anew from the rows, and only earlier ones are read from the cache, so that
// one launch does it all; what is read from there is the same product, rounded the same way.
#include "kernels/cuda/primitives/fused.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/runtime/rows_shape.h"
#include "kernels/cuda/state/state_slices.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 128;

struct ShortConvParams {
  StateBatch batch;
  Tensor bcx;
  Tensor out;
  const float* weight;
  const float* bias;
  uint8_t* cache;
  int64_t page_stride;
  int32_t page_tokens;
  int32_t taps;
};

HEDDLE_DEVICE float* RowOf(const ShortConvParams& p, int64_t page, int32_t offset) {
  return reinterpret_cast<float*>(p.cache + page * p.page_stride) + offset * p.out.cols;
}

// The row of a position before the step's rows, in the sequence's list of spans.
HEDDLE_DEVICE const float* EarlierRow(const ShortConvParams& p, int seq, int32_t position) {
  const DeviceBatch& batch = p.batch.all;
  int32_t low = batch.span_begin[seq], high = batch.span_begin[seq + 1];
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (batch.span_first[middle] <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return RowOf(p, batch.span_page[low], position - batch.span_first[low]);
}

// The convolution's input of row t.
template <typename T>
HEDDLE_DEVICE float InputOf(const ShortConvParams& p, int t, int64_t c) {
  const T* row = p.bcx.row<T>(t);
  return ToFloat(row[c]) * ToFloat(row[2 * p.out.cols + c]);
}

// BlockX: a row. BlockY: kThreads of its channels.
template <typename T>
HEDDLE_KERNEL ShortConvKernel(HEDDLE_PARAMS(ShortConvParams, p)) {
  StartInTurn();
  const int t = BlockX();
  const int seq = SequenceOf(p.batch, t);
  const int64_t c = static_cast<int64_t>(BlockY()) * kThreads + ThreadX();
  if (c >= p.out.cols) return;
  const int32_t begin = p.batch.all.q_begin[seq];
  const int i = p.batch.first_row + t - begin;  // of the sequence's rows
  const int32_t before = p.batch.all.context_len[seq] - (p.batch.all.q_begin[seq + 1] - begin);
  const float own = InputOf<T>(p, t, c);
  const StatePlace place = PlaceOf(p.batch, p.page_tokens, t);
  RowOf(p, place.page, place.offset)[c] = own;
  float sum = p.bias != nullptr ? p.bias[c] : 0.0f;
  for (int tap = 0; tap < p.taps; ++tap) {
    const int back = p.taps - 1 - tap;
    float y = own;
    if (back > i) {
      const int32_t position = before + i - back;
      if (position < 0) continue;
      y = EarlierRow(p, seq, position)[c];
    } else if (back > 0) {
      y = InputOf<T>(p, t - back, c);
    }
    sum = Fma(p.weight[tap * p.out.cols + c], y, sum);
  }
  p.out.row<T>(t)[c] = RoundTo(ToFloat(p.bcx.row<T>(t)[p.out.cols + c]) * sum, T());
}

}  // namespace

Error LaunchShortConv(const StateBatch& batch, const ShortConvArgs& args, DType act,
                      Stream stream) {
  const StatePages pages = PagesOf(args.cache, args.cache.page_tokens);
  const ShortConvParams params = {.batch = batch,
                                  .bcx = args.bcx,
                                  .out = args.out,
                                  .weight = args.weight,
                                  .bias = args.bias,
                                  .cache = pages.base,
                                  .page_stride = pages.stride,
                                  .page_tokens = args.cache.page_tokens,
                                  .taps = args.taps};
  const LaunchShape shape = RowsShape(args.out.rows, args.out.cols, kThreads);
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(ShortConvKernel<T>, shape, stream, params); });
}

}  // namespace heddle::kernels::cuda
