// The launches around a recurrence's scan. Before it, where sequences have many rows: q, k and v of
// each row, once for all blocks that want them. Behind it: outputs are normed and gated, and pages
// get what several of the scan's blocks read: keys, sums of g, the convolution's inputs, and the
// position that S is before. That is a launch of its own, since these lie in the places of earlier
// ones, which all of the scan's blocks have to have read.
//
// Blocks [0, gate_blocks) gate rows; then each sequence has blocks that keep: one for each key
// head, which convolves the kept rows again, others with kWarps heads of v, whose g they add up
// again, and others with kThreads channels of q and v.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/state/recurrence_params.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Columns that are normed together: up to so many by a warp, more by a block.
constexpr int64_t kWarpColumns = 512;

struct MixParams {
  RecurrenceParams of;
  float* mixed;
};

// BlockX: a row. BlockY: kWarps heads of q, k and v of it, a warp each.
template <typename T>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 2) RecurrenceMixKernel(HEDDLE_PARAMS(MixParams, params)) {
  StartInTurn();
  const RecurrenceParams& p = params.of;
  const int t = BlockX();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, SequenceOf(p.batch, t));
  const int piece = BlockY() * kWarps + WarpIndex(), n_keys = 2 * p.n_key_heads;
  if (piece >= n_keys + p.n_heads) return;
  const bool is_value = piece >= n_keys;
  const int64_t begin = is_value ? 2 * p.keys + static_cast<int64_t>(piece - n_keys) * p.value_dim
                                 : static_cast<int64_t>(piece) * p.key_dim;
  const int dim = is_value ? p.value_dim : p.key_dim;
  float* to = params.mixed + t * p.conv.channels + begin;
  float squares = 0;
  for (int d = Lane(); d < dim; d += 32) {
    const float x = Convolved<T>(p.conv, p.pages, slice, t - slice.first_row, begin + d);
    squares = Fma(x, x, squares);
    to[d] = x;
  }
  if (is_value || !p.delta) return;
  const float inverse = InverseLength(squares);
  const float factor =
      piece >= p.n_key_heads ? inverse : inverse * Rsqrt(static_cast<float>(p.key_dim));
  for (int d = Lane(); d < dim; d += 32) to[d] *= factor;
}

struct EndParams {
  RecurrenceParams of;
  int32_t gate_blocks;
  int32_t keep_blocks;  // of a sequence
};

// Columns of group `group` of row t, by threads `first`, `first + step`, ... of a warp or a block.
template <typename T, bool kWide>
HEDDLE_DEVICE void Gate(const RecurrenceParams& p, int64_t t, int64_t group,
                        Shared<float> scratch) {
  const int64_t begin = group * p.norm_width;
  const int first = kWide ? ThreadX() : Lane(), step = kWide ? kThreads : 32;
  T* out = p.out.row<T>(t) + begin;
  const T* gate = p.conv.in.row<T>(t) + p.gate_column + begin;
  const auto value = [&](int64_t i) {
    const float x = ToFloat(out[i]);
    return p.gates_first ? x * Silu(ToFloat(gate[i])) : x;
  };
  float factor = 1;
  if (p.norm != nullptr) {
    float squares = 0;
    for (int64_t i = first; i < p.norm_width; i += step) squares = Fma(value(i), value(i), squares);
    squares = kWide ? BlockSum(squares, scratch) : WarpSum(squares);
    factor = Rsqrt(squares / static_cast<float>(p.norm_width) + p.norm_eps);
  }
  for (int64_t i = first; i < p.norm_width; i += step) {
    float x = value(i) * factor;
    if (p.norm != nullptr) x *= p.norm[p.norm_per_value ? begin + i : i];
    if (!p.gates_first) x *= Silu(ToFloat(gate[i]));
    out[i] = RoundTo(x, T());
  }
}

// Rows [begin, begin + n) of a slice, all that are in one page.
struct PageRows {
  int begin;
  int n;
  StatePlace place;  // of the first

  // The first of the last `most` rows.
  HEDDLE_DEVICE int From(int most) const { return n > most ? begin + n - most : begin; }
  HEDDLE_DEVICE int32_t OffsetOf(int row) const { return place.offset + row - begin; }
};

HEDDLE_DEVICE PageRows RowsAt(const RecurrenceParams& p, const StateSlice& slice, int begin) {
  PageRows rows = {begin, slice.n - begin,
                   PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + begin)};
  const int left = p.pages.page_tokens - rows.place.offset;
  if (rows.n > left) rows.n = left;
  return rows;
}

// Keys of rows of a page, as the scan made them: a warp has a row.
template <typename T>
HEDDLE_DEVICE void KeepKeys(const RecurrenceParams& p, const StateSlice& slice,
                            const PageRows& rows, int key_head) {
  for (int row = rows.From(2 * kScanRows) + WarpIndex(); row < rows.begin + rows.n; row += kWarps) {
    const int32_t offset = rows.OffsetOf(row);
    float* to = PageOf(p.pages, rows.place.page) + p.keys_at +
                PartOf(key_head, offset) * p.key_dim + offset % kScanRows;
    const int64_t first = p.keys + static_cast<int64_t>(key_head) * p.key_dim;
    if (p.mixed != nullptr) {
      const float* made = p.mixed + (slice.first_row + row) * p.conv.channels + first;
      for (int d = Lane(); d < p.key_dim; d += 32)
        to[static_cast<int64_t>(d) * kScanRows] = made[d];
      continue;
    }
    float squares = 0;
    for (int d = Lane(); d < p.key_dim; d += 32) {
      const int64_t c = first + d;
      const float x = Convolved<T>(p.conv, p.pages, slice, row, c);
      squares = Fma(x, x, squares);
      to[static_cast<int64_t>(d) * kScanRows] = x;
    }
    if (!p.delta) continue;
    const float inverse = InverseLength(squares);
    for (int d = Lane(); d < p.key_dim; d += 32) {
      to[static_cast<int64_t>(d) * kScanRows] *= inverse;
    }
  }
}

// Sums of g of rows of a page, by which the scan's blocks had decayed, as these made them. By a
// warp. Places of kept rows are different ones, and the sum that the first part goes on from is
// read before it writes.
template <typename T>
HEDDLE_DEVICE void KeepDecays(const RecurrenceParams& p, const StateSlice& slice,
                              const PageRows& rows, int head) {
  const int kept = rows.From(2 * kScanRows), end = rows.begin + rows.n;
  int row = kept - rows.OffsetOf(kept) % kScanRows;
  if (row < rows.begin) row = rows.begin;
  while (row < end) {
    const int32_t offset = rows.OffsetOf(row);
    const int first = offset % kScanRows;
    const int n = end - row < kScanRows - first ? end - row : kScanRows - first;
    float* decays = DecaysAt(p, rows.place.page, head, offset);
    float sum = first > 0 ? decays[first - 1] : 0.0f;
    float own = 0;
    if (Lane() < n) own = StepOf<T>(p, slice.first_row + row + Lane(), head, p.delta).decay;
    for (int i = 0; i < n; ++i) {
      const float decay = Shuffle(own, i);
      if (i <= Lane()) sum += decay;
    }
    SyncWarp();
    if (Lane() < n && row + Lane() >= kept) decays[first + Lane()] = sum;
    SyncWarp();
    row += n;
  }
}

// Blocks of a sequence that keep sums of g.
HEDDLE_HOST_DEVICE int DecayBlocks(const RecurrenceParams& p) {
  return (p.n_heads + kWarps - 1) / kWarps;
}

// Channels c, c + step, ... below `end` of the convolution's input, of rows of a page.
template <typename T>
HEDDLE_DEVICE void KeepInputs(const RecurrenceParams& p, const StateSlice& slice,
                              const PageRows& rows, int64_t c, int64_t end) {
  for (int row = rows.From(p.conv.input_rows); row < rows.begin + rows.n; ++row) {
    float* to = InputOf(p.conv, p.pages, rows.place.page, rows.OffsetOf(row));
    const T* from = p.conv.in.row<T>(slice.first_row + row);
    for (int64_t i = c; i < end; i += kThreads) to[i] = ToFloat(from[i]);
  }
}

template <typename T>
HEDDLE_DEVICE void Keep(const RecurrenceParams& p, const StateSlice& slice, int piece) {
  const int decay_blocks = DecayBlocks(p);
  if (piece >= p.n_key_heads && piece < p.n_key_heads + decay_blocks) {
    const int head = (piece - p.n_key_heads) * kWarps + WarpIndex();
    for (int begin = 0; begin < slice.n && head < p.n_heads;) {
      const PageRows rows = RowsAt(p, slice, begin);
      KeepDecays<T>(p, slice, rows, head);
      begin += rows.n;
    }
    return;
  }
  if (piece >= p.n_key_heads) {
    int64_t c = static_cast<int64_t>(piece - p.n_key_heads - decay_blocks) * kThreads + ThreadX();
    if (c >= p.keys) c += p.keys;
    for (int begin = 0; begin < slice.n && c < p.conv.channels;) {
      const PageRows rows = RowsAt(p, slice, begin);
      KeepInputs<T>(p, slice, rows, c, c + 1);
      begin += rows.n;
    }
    return;
  }
  for (int begin = 0; begin < slice.n;) {
    const PageRows rows = RowsAt(p, slice, begin);
    KeepKeys<T>(p, slice, rows, piece);
    begin += rows.n;
    if (piece > 0 || ThreadX() > 0) continue;
    const int32_t at = slice.is_final() ? rows.OffsetOf(begin - 1) : rows.place.offset;
    SetBorder(p.pages, rows.place.page, at - at % kScanRows);
  }
  SyncThreads();  // these were convolved from inputs that may have the same places
  const int64_t first = p.keys + static_cast<int64_t>(piece) * p.key_dim;
  for (int begin = 0; begin < slice.n;) {
    const PageRows rows = RowsAt(p, slice, begin);
    KeepInputs<T>(p, slice, rows, first + ThreadX(), first + p.key_dim);
    begin += rows.n;
  }
}

template <typename T, bool kWide>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 2) RecurrenceEndKernel(HEDDLE_PARAMS(EndParams, params)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> scratch = arena.Take<float>(kWarps);
  const RecurrenceParams& p = params.of;
  if (BlockX() >= params.gate_blocks) {
    const int block = BlockX() - params.gate_blocks;
    const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, block / params.keep_blocks);
    if (slice.n > 0) Keep<T>(p, slice, block % params.keep_blocks);
    return;
  }
  const int64_t groups = p.values / p.norm_width;
  const int64_t unit = kWide ? BlockX() : static_cast<int64_t>(BlockX()) * kWarps + WarpIndex();
  if (unit < groups * p.out.rows) Gate<T, kWide>(p, unit / groups, unit % groups, scratch);
}

}  // namespace

Error LaunchRecurrenceMix(const StateBatch& batch, const RecurrenceArgs& args, float* mixed,
                          DType act, Stream stream) {
  const MixParams params = {ParamsOf(batch, args, nullptr), mixed};
  const LaunchShape shape = {
      .grid_x = static_cast<int>(args.in.rows),
      .grid_y = CeilDiv(2 * params.of.n_key_heads + params.of.n_heads, kWarps),
      .threads = kThreads};
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(RecurrenceMixKernel<T>, shape, stream, params); });
}

Error LaunchRecurrenceEnd(const StateBatch& batch, const RecurrenceArgs& args, const float* mixed,
                          DType act, Stream stream) {
  EndParams params = {.of = ParamsOf(batch, args, mixed), .gate_blocks = 0, .keep_blocks = 0};
  const RecurrenceParams& p = params.of;
  const bool wide = p.norm_width > kWarpColumns;
  const int64_t units = args.out.rows * (p.values / p.norm_width);
  params.gate_blocks = CeilDiv(units, wide ? 1 : kWarps);
  params.keep_blocks = p.n_key_heads + DecayBlocks(p) + CeilDiv(p.keys + p.values, kThreads);
  const LaunchShape shape = {.grid_x = params.gate_blocks + batch.all.n_seqs * params.keep_blocks,
                             .threads = kThreads,
                             .shared_bytes = SharedBytesFor<float>(kWarps)};
  return ForActivation(act, [&]<typename T>(T) {
    return wide ? Launch(RecurrenceEndKernel<T, true>, shape, stream, params)
                : Launch(RecurrenceEndKernel<T, false>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
