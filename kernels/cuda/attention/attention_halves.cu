// Queries that meet half of each key, written out with zeros in the other half, so that the kernels
// for attention know nothing of them (decision 0144).
#include "kernels/cuda/attention/attention_halves.h"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// BlockX: a row. BlockY: kThreads groups of kWidth columns of its whole queries.
template <typename T, int kWidth>
HEDDLE_KERNEL WholeQueriesKernel(HEDDLE_PARAMS(WholeQueriesParams, p)) {
  StartInTurn();
  const int64_t i = (static_cast<int64_t>(BlockY()) * ThreadCount() + ThreadX()) * kWidth;
  if (i >= p.whole.cols) return;
  const int64_t half = i / p.half_dim;  // of heads from first_head on, two each
  const int64_t head = p.first_head + half / 2;
  Group<T, kWidth> values;
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) values.item[j] = RoundTo(0.0f, T());
  if (half % 2 == head % 2) {
    values = LoadGroup<kWidth>(p.halves.row<T>(BlockX()) + head * p.half_dim + i % p.half_dim);
  }
  StoreGroup(p.whole.row<T>(BlockX()) + i, values);
}

}  // namespace

Error LaunchWholeQueries(const WholeQueriesParams& params, DType act, Stream stream) {
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = params.half_dim % kWide == 0 && IsAligned<T>(params.halves, kWide) &&
                      IsAligned<T>(params.whole, kWide);
    const LaunchShape shape = {.grid_x = static_cast<int>(params.whole.rows),
                               .grid_y = CeilDiv(params.whole.cols, kThreads * (wide ? kWide : 1)),
                               .threads = kThreads};
    return wide ? Launch(WholeQueriesKernel<T, kWide>, shape, stream, params)
                : Launch(WholeQueriesKernel<T, 1>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
