// Mixes of neighbouring rows (TokenShiftArgs). A thread has one column of one row. The first row's
// threads read what an earlier step kept, and then keep the rows of the same page, which may take
// its place.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/runtime/rows_shape.h"
#include "kernels/cuda/state/state_slices.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKept = static_cast<int>(WkvState::kShiftRows);  // rows of a page

struct TokenShiftParams {
  StateBatch batch;
  StatePages pages;
  Tensor x;
  Tensor out;
  const float* mix;
  int64_t place;
  int32_t n_mixes;
};

HEDDLE_DEVICE float* ShiftRow(const TokenShiftParams& p, int64_t page, int32_t offset) {
  return PageOf(p.pages, page) + p.place + offset % kKept * p.x.cols;
}

// Keeps the slice's row i if no later row of the step takes its place.
template <typename T>
HEDDLE_DEVICE void KeepRow(const TokenShiftParams& p, const StateSlice& slice, int i, int64_t c) {
  const StatePlace place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + i);
  if (RowsBehind(slice, p.pages.page_tokens, i, place.offset) >= kKept) return;
  ShiftRow(p, place.page, place.offset)[c] = ToFloat(p.x.row<T>(slice.first_row + i)[c]);
}

// BlockX: a row. BlockY: kThreads of its columns.
template <typename T>
HEDDLE_KERNEL TokenShiftKernel(HEDDLE_PARAMS(TokenShiftParams, p)) {
  StartInTurn();
  const int t = BlockX();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, SequenceOf(p.batch, t));
  const int64_t c = static_cast<int64_t>(BlockY()) * kThreads + ThreadX();
  if (c >= p.x.cols) return;
  const int i = t - slice.first_row;
  const float own = ToFloat(p.x.row<T>(t)[c]);
  float before = 0;
  if (i > 0) {
    before = ToFloat(p.x.row<T>(t - 1)[c]);
  } else if (slice.offset > 0) {
    before = ShiftRow(p, slice.page, slice.offset - 1)[c];
  } else if (slice.page_before >= 0) {
    before = ShiftRow(p, slice.page_before, p.pages.page_tokens - 1)[c];
  }
  T* out = p.out.row<T>(t) + c;
  for (int m = 0; m < p.n_mixes; ++m) {
    const int64_t at = m * p.x.cols;
    out[at] = RoundTo(Fma(p.mix[at + c], before - own, own), T());
  }
  if (i > 0) {
    if (slice.offset + i >= p.pages.page_tokens) KeepRow<T>(p, slice, i, c);
    return;
  }
  const int left = p.pages.page_tokens - slice.offset;
  const int here = slice.n < left ? slice.n : left;
  for (int row = here > kKept ? here - kKept : 0; row < here; ++row) KeepRow<T>(p, slice, row, c);
}

}  // namespace

Error LaunchTokenShift(const StateBatch& batch, const TokenShiftArgs& args, DType act,
                       Stream stream) {
  const TokenShiftParams params = {.batch = batch,
                                   .pages = PagesOf(args.cache, args.page_tokens),
                                   .x = args.x,
                                   .out = args.out,
                                   .mix = args.mix,
                                   .place = args.place,
                                   .n_mixes = args.n_mixes};
  const LaunchShape shape = RowsShape(args.x.rows, args.x.cols, kThreads);
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(TokenShiftKernel<T>, shape, stream, params); });
}

}  // namespace heddle::kernels::cuda
