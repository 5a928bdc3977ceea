// Selective scans (kSelective of kernels/recurrence.h, the first Mamba) in their two calls: the
// convolution, and the scan with its gate.
//
// A thread has one channel and keeps its states, up to kMaxSelectedRows numbers, in registers while
// it goes through a sequence's rows one by one. Each number of a state takes an exponential, a
// product and two fused ones, in the same order whatever rows a step has.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/runtime/rows_shape.h"
#include "kernels/cuda/state/state_slices.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kScanThreads = 64;  // few, so that one sequence of 5120 channels has 80 blocks

struct SelectiveParams {
  StateBatch batch;
  StatePages pages;
  StateConv conv;
  Tensor factors;
  Tensor out;
  const float* decay;
  const float* skip;
  // Offsets in a page, in floats: S, and v, dt and k of rows that may be taken back.
  int64_t state_at;
  int64_t values_at;
  int64_t steps_at;
  int64_t keys_at;
  int64_t gate_column;
  int32_t key_dim;
  bool gates;
};

SelectiveParams ParamsOf(const StateBatch& batch, const RecurrenceArgs& args) {
  const RecurrenceState layout(args.shape);
  return {.batch = batch,
          .pages = PagesOf(args.cache, args.page_tokens),
          .conv = ConvOf(args, layout),
          .factors = args.factors,
          .out = args.out,
          .decay = args.decay,
          .skip = args.skip,
          .state_at = layout.state,
          .values_at = layout.updates,
          .steps_at = layout.decays,
          .keys_at = layout.keys,
          .gate_column = args.shape.gate_column(),
          .key_dim = args.shape.key_dim,
          .gates = args.gates};
}

// Keeps the input of the slice's row i if no later row of the step takes its place.
template <typename T>
HEDDLE_DEVICE void KeepInput(const SelectiveParams& p, const StateSlice& slice, int i, int64_t c) {
  const StatePlace place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + i);
  if (RowsBehind(slice, p.pages.page_tokens, i, place.offset) >= p.conv.input_rows) return;
  InputOf(p.conv, p.pages, place.page, place.offset)[c] =
      ToFloat(p.conv.in.row<T>(slice.first_row + i)[c]);
}

// BlockX: a row. BlockY: kThreads of its channels. The first row's threads compute those that need
// inputs of earlier steps, and then write in their places, those of the same page.
template <typename T>
HEDDLE_KERNEL SelectiveConvKernel(HEDDLE_PARAMS(SelectiveParams, p)) {
  StartInTurn();
  const int t = BlockX();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, SequenceOf(p.batch, t));
  const int64_t c = static_cast<int64_t>(BlockY()) * kThreads + ThreadX();
  if (c >= p.conv.channels) return;
  const int i = t - slice.first_row;
  const bool is_first = i == 0;
  if (!is_first && i < p.conv.taps - 1) {
    if (slice.offset + i >= p.pages.page_tokens) KeepInput<T>(p, slice, i, c);
    return;
  }
  const int end = !is_first ? i + 1 : slice.n < p.conv.taps - 1 ? slice.n : p.conv.taps - 1;
  for (int row = i; row < end || row == i; ++row) {
    const float value = Convolved<T>(p.conv, p.pages, slice, row, c);
    p.out.row<T>(slice.first_row + row)[c] = RoundTo(value, T());
  }
  if (!is_first) {
    if (slice.offset + i >= p.pages.page_tokens) KeepInput<T>(p, slice, i, c);
    return;
  }
  const int left = p.pages.page_tokens - slice.offset;
  const int here = slice.n < left ? slice.n : left;
  const int from = here > p.conv.input_rows ? here - p.conv.input_rows : 0;
  for (int row = from; row < here; ++row) KeepInput<T>(p, slice, row, c);
}

template <typename T, int kStates>
struct Selection {
  const SelectiveParams& p;
  const StateSlice slice;
  const int64_t c;

  HEDDLE_DEVICE float* StateAt(int64_t page) const {
    return PageOf(p.pages, page) + p.state_at + Element();
  }
  // Where the channel's states and decays begin; kChannelBlock apart.
  HEDDLE_DEVICE int64_t Element() const {
    return c / kChannelBlock * p.key_dim * kChannelBlock + c % kChannelBlock;
  }
  HEDDLE_DEVICE float* ValueAt(int64_t page, int32_t offset) const {
    return PageOf(p.pages, page) + p.values_at + offset % kScanRows * p.conv.channels + c;
  }
  HEDDLE_DEVICE float* StepAt(int64_t page, int32_t offset) const {
    return PageOf(p.pages, page) + p.steps_at + offset % kScanRows * p.conv.channels + c;
  }

  HEDDLE_DEVICE void Load(const float* from, float (&s)[kStates]) const {
    HEDDLE_UNROLL
    for (int d = 0; d < kStates; ++d) s[d] = d < p.key_dim ? from[d * kChannelBlock] : 0.0f;
  }
  HEDDLE_DEVICE void Store(int64_t page, const float (&s)[kStates]) const {
    float* to = StateAt(page);
    HEDDLE_UNROLL
    for (int d = 0; d < kStates; ++d) {
      if (d < p.key_dim) to[d * kChannelBlock] = s[d];
    }
  }

  // Takes a row in, and returns the sum of the states times queries; those of T or float.
  template <typename Key>
  HEDDLE_DEVICE float Step(float step, float value, const Key* keys, const Key* queries,
                           const float (&decay)[kStates], float (&s)[kStates]) const {
    const float update = step * value;
    float sum = 0;
    HEDDLE_UNROLL
    for (int d = 0; d < kStates; ++d) {
      if (d >= p.key_dim) break;
      s[d] = Fma(ToFloat(keys[d]), update, Exp(step * decay[d]) * s[d]);
      sum = Fma(ToFloat(queries[d]), s[d], sum);
    }
    return sum;
  }

  // Brings S to the slice's first row.
  HEDDLE_DEVICE void Begin(const float (&decay)[kStates], float (&s)[kStates]) const {
    const int64_t page = slice.offset > 0 ? slice.page : slice.page_before;
    if (page < 0) {
      HEDDLE_UNROLL
      for (int d = 0; d < kStates; ++d) s[d] = 0;
      return;
    }
    Load(StateAt(page), s);
    const int32_t end = slice.offset > 0 ? slice.offset : p.pages.page_tokens;
    for (int32_t offset = BorderOf(p.pages, page, end); offset < end; ++offset) {
      const float* keys =
          PageOf(p.pages, page) + p.keys_at + offset % kScanRows * static_cast<int64_t>(p.key_dim);
      Step(*StepAt(page, offset), *ValueAt(page, offset), keys, keys, decay, s);
    }
  }

  HEDDLE_DEVICE void Run() const {
    float decay[kStates], s[kStates];
    Load(p.decay + Element(), decay);
    Begin(decay, s);
    const bool keeps = !slice.ends_behind();
    const float skip = p.skip != nullptr ? p.skip[c] : 0.0f;
    for (int i = 0; i < slice.n; ++i) {
      const int t = slice.first_row + i;
      const StatePlace place = PlaceOf(p.batch, p.pages.page_tokens, t);
      if (keeps && (i == 0 || place.offset == 0)) Store(place.page, s);
      const T* in = p.conv.in.row<T>(t);
      T* out = p.out.row<T>(t);
      const float step = Softplus(ToFloat(in[c]));
      const float value = ToFloat(out[c]);
      if (keeps) {
        *StepAt(place.page, place.offset) = step;
        *ValueAt(place.page, place.offset) = value;
      }
      const T* keys = p.factors.row<T>(t);
      float sum = Step(step, value, keys, keys + p.key_dim, decay, s);
      sum = Fma(skip, value, sum);
      if (p.gates) sum *= Silu(ToFloat(in[p.gate_column + c]));
      out[c] = RoundTo(sum, T());
      const bool ends = i + 1 == slice.n || place.offset + 1 == p.pages.page_tokens;
      if (!keeps && ends) Store(place.page, s);
    }
  }
};

// BlockX: channels. BlockY: a sequence.
template <typename T, int kStates>
HEDDLE_KERNEL HEDDLE_BOUNDS(kScanThreads, 4)
    SelectiveScanKernel(HEDDLE_PARAMS(SelectiveParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockY());
  const int64_t c = static_cast<int64_t>(BlockX()) * kScanThreads + ThreadX();
  if (slice.n == 0 || c >= p.conv.channels) return;
  Selection<T, kStates>{p, slice, c}.Run();
}

// Keeps what all channels share, behind the scan, which reads what lies in the same places. BlockX:
// a sequence.
template <typename T>
HEDDLE_KERNEL SelectiveKeepKernel(HEDDLE_PARAMS(SelectiveParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockX());
  for (int i = 0; i < slice.n;) {
    const StatePlace place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + i);
    const int left = p.pages.page_tokens - place.offset;
    const int n = slice.n - i < left ? slice.n - i : left;
    if (ThreadX() == 0) {
      SetBorder(p.pages, place.page, slice.ends_behind() ? place.offset + n : place.offset);
    }
    for (int j = ThreadX(); !slice.ends_behind() && j < n * p.key_dim; j += ThreadCount()) {
      const int row = j / p.key_dim, d = j % p.key_dim;
      float* to = PageOf(p.pages, place.page) + p.keys_at +
                  (place.offset + row) % kScanRows * static_cast<int64_t>(p.key_dim);
      to[d] = ToFloat(p.factors.row<T>(slice.first_row + i + row)[d]);
    }
    i += n;
  }
}

}  // namespace

Error LaunchSelectiveConv(const StateBatch& batch, const RecurrenceArgs& args, DType act,
                          Stream stream) {
  const SelectiveParams params = ParamsOf(batch, args);
  const LaunchShape shape = RowsShape(args.out.rows, params.conv.channels, kThreads);
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(SelectiveConvKernel<T>, shape, stream, params); });
}

Error LaunchSelectiveScan(const StateBatch& batch, const RecurrenceArgs& args, DType act,
                          Stream stream) {
  constexpr int kUsualStates = 16;
  const SelectiveParams params = ParamsOf(batch, args);
  const LaunchShape scan = {.grid_x = CeilDiv(params.conv.channels, kScanThreads),
                            .grid_y = batch.all.n_seqs,
                            .threads = kScanThreads};
  const LaunchShape keep = {.grid_x = batch.all.n_seqs, .threads = kScanThreads};
  return ForActivation(act, [&]<typename T>(T) {
    const Error error =
        params.key_dim <= kUsualStates
            ? Launch(SelectiveScanKernel<T, kUsualStates>, scan, stream, params)
            : Launch(SelectiveScanKernel<T, kMaxSelectedRows>, scan, stream, params);
    return error != kSuccess ? error : Launch(SelectiveKeepKernel<T>, keep, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
