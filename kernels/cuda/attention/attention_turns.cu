// Queries rotated further for pieces of a context (decision 0112), beside those that are as they
// were, so that tiles of both read one array.
#include "kernels/cuda/attention/attention_halves.h"
#include "kernels/cuda/attention/key_place.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// The two columns of a head that are rotated together, of which `column` is one.
struct ColumnPair {
  int index;  // of the frequency
  int other;  // the other column's distance
  bool is_first;
};
HEDDLE_DEVICE ColumnPair PairOf(const TurnQueriesParams& p, int column) {
  if (p.interleaved != 0) {
    const bool is_first = column % 2 == 0;
    return {column / 2, is_first ? 1 : -1, is_first};
  }
  const bool is_first = column < p.half;
  return {is_first ? column : column - p.half, is_first ? p.half : -p.half, is_first};
}

// BlockX: a row of `to`.
template <typename T>
HEDDLE_KERNEL TurnQueriesKernel(HEDDLE_PARAMS(TurnQueriesParams, p)) {
  StartInTurn();
  SharedArena arena;
  Shared<float> cosines = arena.Take<float>(p.half);
  Shared<float> sines = arena.Take<float>(p.half);
  const int behind = BlockX() - p.n_copied;
  TurnedRow row = {p.first_row + static_cast<int32_t>(BlockX()), 0};
  if (behind >= 0) row = p.turned[behind];
  for (int i = ThreadX(); i < p.half && row.turn != 0; i += ThreadCount()) {
    double sin, cos;
    SinCos(static_cast<double>(p.inv_freq[i]) * row.turn, &sin, &cos);
    cosines.Set(i, static_cast<float>(cos));
    sines.Set(i, static_cast<float>(sin));
  }
  SyncThreads();
  const T* from = p.from.row<T>(row.row);
  T* to = p.to.row<T>(BlockX());
  for (int64_t i = ThreadX(); i < p.to.cols; i += ThreadCount()) {
    const auto column = static_cast<int>(i % p.head_dim);
    if (row.turn == 0 || column >= 2 * p.half) {
      to[i] = from[i];
      continue;
    }
    const ColumnPair pair = PairOf(p, column);
    const float own = ToFloat(from[i]), other = ToFloat(from[i + pair.other]);
    const RotatedPair turned = Rotate(pair.is_first ? own : other, pair.is_first ? other : own,
                                      cosines.Get(pair.index), sines.Get(pair.index));
    to[i] = RoundTo(pair.is_first ? turned.first : turned.second, T());
  }
}

}  // namespace

Error LaunchTurnQueries(const TurnQueriesParams& params, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = params.n_copied + params.n_turned,
                             .threads = kThreads,
                             .shared_bytes = 2 * SharedBytesFor<float>(params.half)};
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(TurnQueriesKernel<T>, shape, stream, params); });
}

}  // namespace heddle::kernels::cuda
