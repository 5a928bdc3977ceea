// Selective scans (kSelective of kernels/recurrence.h, the first Mamba) in their two calls: the
// convolution, and the scan with its gate.
//
// Lanes of a channel keep its states, up to kMaxSelectedRows numbers, in registers while they go
// through a sequence's rows one by one: eight lanes where few blocks or long chunks would leave a
// GPU waiting for each other's rows, otherwise one. What a row needs beside its states, steps and
// what they take in, gates and factors, is made for some rows of each lane at a time, before states
// take these in. Each number of a state takes a power of two, a product and two fused ones, and a
// row's sum over the states is made of eight partial ones, in the same order whatever rows a step
// has and whichever lanes have them.
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/runtime/rows_shape.h"
#include "kernels/cuda/state/state_slices.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeepThreads = 64;
constexpr int kUsualStates = 16;
constexpr int kSharingLanes = 8;             // of a channel, where lanes share one
constexpr int kPartialSums = kSharingLanes;  // of a row's sum over the states
// Threads of a scan's block: few, so that one sequence of 5120 channels has 320 blocks.
constexpr int ScanThreads(int lanes) { return lanes > 1 ? 128 : 64; }

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

// A warp's rows in shared memory, some for each lane of a channel.
template <int kStates, int kLanes>
struct SelectedRows {
  static constexpr int kOwn = kLanes > 1 ? 2 : 4;
  static constexpr int kRows = kOwn * kLanes;
  static constexpr int kChannels = 32 / kLanes;
  static constexpr int kFactors = 2 * kStates;
  static constexpr int kWarps = ScanThreads(kLanes) / 32;

  HEDDLE_DEVICE explicit SelectedRows(SharedArena arena)
      : factors(arena.Take<float>(kWarps * kRows * kFactors).From(WarpIndex() * kRows * kFactors)),
        updates(arena.Take<float>(kWarps * kRows * kChannels * 2)
                    .From(WarpIndex() * kRows * kChannels * 2)) {}
  static constexpr int kBytes = SharedBytesFor<float>(kWarps * kRows * kFactors) +
                                SharedBytesFor<float>(kWarps * kRows * kChannels * 2);

  Shared<float> factors;  // [row][k, then q], zeros behind key_dim
  Shared<float> updates;  // [row][channel]: dt, and dt * v
};

template <typename T, int kStates, int kLanes>
struct Selection {
  using Rows = SelectedRows<kStates, kLanes>;
  static constexpr int kOwn = kStates / kLanes;  // states of a lane
  static constexpr int kOwnRows = Rows::kOwn;
  static constexpr int kSums = kPartialSums / kLanes;  // of a lane
  static constexpr int kSum = kOwn / kSums;            // states of one
  static constexpr int kLoads = Rows::kFactors / 32;   // of a lane for the factors of a row
  const SelectiveParams& p;
  const StateSlice slice;
  const int64_t c;
  const Rows rows;

  HEDDLE_DEVICE bool has_channel() const { return c < p.conv.channels; }
  HEDDLE_DEVICE int first_state() const { return Lane() % kLanes * kOwn; }
  HEDDLE_DEVICE bool has_state(int d) const { return first_state() + d < p.key_dim; }
  // Where the lane's states and decays begin; kChannelBlock apart.
  HEDDLE_DEVICE int64_t Element() const {
    return (c / kChannelBlock * p.key_dim + first_state()) * kChannelBlock + c % kChannelBlock;
  }
  HEDDLE_DEVICE float* StateAt(int64_t page) const {
    return PageOf(p.pages, page) + p.state_at + Element();
  }
  HEDDLE_DEVICE float* ValueAt(int64_t page, int32_t offset) const {
    return PageOf(p.pages, page) + p.values_at + offset % kScanRows * p.conv.channels + c;
  }
  HEDDLE_DEVICE float* StepAt(int64_t page, int32_t offset) const {
    return PageOf(p.pages, page) + p.steps_at + offset % kScanRows * p.conv.channels + c;
  }

  HEDDLE_DEVICE void Load(const float* from, float (&s)[kOwn]) const {
    HEDDLE_UNROLL
    for (int d = 0; d < kOwn; ++d) {
      s[d] = has_channel() && has_state(d) ? from[d * kChannelBlock] : 0.0f;
    }
  }
  HEDDLE_DEVICE void Store(int64_t page, const float (&s)[kOwn]) const {
    float* to = StateAt(page);
    HEDDLE_UNROLL
    for (int d = 0; d < kOwn; ++d) {
      if (has_channel() && has_state(d)) to[d * kChannelBlock] = s[d];
    }
  }

  // A row's decay and update of one state. `decay`: for powers of two.
  HEDDLE_DEVICE static float Moved(float s, float step, float update, float key, float decay) {
    return Fma(key, update, Exp2(step * decay) * s);
  }

  // Brings S to the slice's first row.
  HEDDLE_DEVICE void Begin(const float (&decay)[kOwn], float (&s)[kOwn]) const {
    const int64_t page = slice.offset > 0 ? slice.page : slice.page_before;
    HEDDLE_UNROLL
    for (int d = 0; d < kOwn; ++d) s[d] = 0;
    if (page < 0 || !has_channel()) return;
    Load(StateAt(page), s);
    const int32_t end = slice.offset > 0 ? slice.offset : p.pages.page_tokens;
    for (int32_t offset = BorderOf(p.pages, page, end); offset < end; ++offset) {
      const float* keys = PageOf(p.pages, page) + p.keys_at + first_state() +
                          offset % kScanRows * static_cast<int64_t>(p.key_dim);
      const float step = *StepAt(page, offset), update = step * *ValueAt(page, offset);
      HEDDLE_UNROLL
      for (int d = 0; d < kOwn; ++d) {
        if (has_state(d)) s[d] = Moved(s[d], step, update, keys[d], decay[d]);
      }
    }
  }

  // A lane's loads for some rows ahead of their turn: steps, v and the gate of its own rows, and
  // its share of the factors of all.
  struct Ahead {
    T steps[kOwnRows], values[kOwnRows], gates[kOwnRows];
    T factors[Rows::kRows][kLoads];
  };
  HEDDLE_DEVICE static int OwnRow(int i) { return i * kLanes + Lane() % kLanes; }
  HEDDLE_DEVICE void LoadAhead(int t, int n, Ahead& ahead) const {
    const int64_t first = slice.first_row + t;
    const T* in = p.conv.in.row<T>(first) + c;
    const T* out = p.out.row<T>(first) + c;
    const auto in_stride = static_cast<int>(p.conv.in.stride);
    const auto out_stride = static_cast<int>(p.out.stride);
    const auto gate = static_cast<int>(p.gate_column);
    HEDDLE_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      const bool is_there = OwnRow(i) < n && has_channel();
      const int at = OwnRow(i) * in_stride;
      ahead.steps[i] = is_there ? in[at] : T();
      ahead.values[i] = is_there ? out[OwnRow(i) * out_stride] : T();
      ahead.gates[i] = is_there && p.gates ? in[at + gate] : T();
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const int at = 32 * i + Lane(), d = at % kStates;
      const T* factors = p.factors.row<T>(first) + (at < kStates ? d : p.key_dim + d);
      HEDDLE_UNROLL
      for (int row = 0; row < Rows::kRows; ++row) {
        ahead.factors[row][i] = row < n && d < p.key_dim ? *factors : T();
        factors += p.factors.stride;
      }
    }
  }

  // Takes a row in, and returns this lane's partial sums of states times queries.
  HEDDLE_DEVICE void Step(int row, const float (&decay)[kOwn], float (&s)[kOwn],
                          float (&sums)[kSums]) const {
    constexpr int kWidth = kSum < 4 ? kSum : 4;
    using Some = Group<float, kWidth>;
    const auto [step, update] =
        rows.updates.template GetAs<Group<float, 2>>((row * Rows::kChannels + Lane() / kLanes) * 2)
            .item;
    const int at = row * Rows::kFactors + first_state();
    HEDDLE_UNROLL
    for (int sum = 0; sum < kSums; ++sum) {
      sums[sum] = 0;
      HEDDLE_UNROLL
      for (int d = sum * kSum; d < (sum + 1) * kSum; d += kWidth) {
        const auto keys = rows.factors.template GetAs<Some>(at + d);
        const auto queries = rows.factors.template GetAs<Some>(at + kStates + d);
        HEDDLE_UNROLL
        for (int e = 0; e < kWidth; ++e) {
          s[d + e] = Moved(s[d + e], step, update, keys.item[e], decay[d + e]);
          sums[sum] = Fma(queries.item[e], s[d + e], sums[sum]);
        }
      }
    }
  }

  // Takes n rows in; `own`: the sums over all states of the lane's own rows. A row's partial sums
  // are added as pairs, and these as pairs, whichever lanes have them.
  HEDDLE_DEVICE void Steps(int n, const float (&decay)[kOwn], float (&s)[kOwn],
                           float (&own)[kOwnRows]) const {
    HEDDLE_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      own[i] = 0;
      if (i * kLanes >= n) continue;
      float sums[kPartialSums];
      if constexpr (kLanes == 1) {
        Step(i, decay, s, sums);
        HEDDLE_UNROLL
        for (int left = kPartialSums / 2; left > 0; left /= 2) {
          HEDDLE_UNROLL
          for (int j = 0; j < left; ++j) sums[j] = sums[2 * j] + sums[2 * j + 1];
        }
      } else {
        const int rows_here = n - kLanes * i;  // the same in all lanes
        const auto step = [&](int row) {
          float sum[1];
          Step(kLanes * i + row, decay, s, sum);
          sums[row] = sum[0];
        };
        if (rows_here >= kLanes) {
          HEDDLE_UNROLL
          for (int row = 0; row < kLanes; ++row) step(row);
        } else {
          HEDDLE_UNROLL
          for (int row = 0; row < kLanes; ++row) {
            sums[row] = 0;
            if (row < rows_here) step(row);
          }
        }
        // Each exchange leaves a lane half of the rows, at last the one of its own number.
        HEDDLE_UNROLL
        for (int mask = 1; mask < kLanes; mask *= 2) {
          const bool takes_second = (Lane() & mask) > 0;
          HEDDLE_UNROLL
          for (int j = 0; j < kLanes / (2 * mask); ++j) {
            const float first = sums[2 * j], second = sums[2 * j + 1];
            const float other = ShuffleXor(takes_second ? first : second, mask);
            sums[j] = (takes_second ? second : first) + other;
          }
        }
      }
      own[i] = sums[0];
    }
  }

  HEDDLE_DEVICE void Run() const {
    constexpr float kLog2E = 1.44269504f;
    float decay[kOwn], s[kOwn];
    Load(p.decay + Element(), decay);
    HEDDLE_UNROLL
    for (int d = 0; d < kOwn; ++d) decay[d] *= kLog2E;
    Begin(decay, s);
    const bool keeps = !slice.ends_behind();
    const float skip = p.skip != nullptr && has_channel() ? p.skip[c] : 0.0f;
    StatePlace place = {slice.page, slice.offset};
    int n = RowsAt(0, place);
    Ahead ahead;
    LoadAhead(0, n, ahead);
    for (int t = 0; t < slice.n;) {
      if (keeps && (t == 0 || place.offset == 0)) Store(place.page, s);
      float values[kOwnRows], gates[kOwnRows], sums[kOwnRows];
      SyncWarp();  // the rows before have been read
      Prepare(place, n, keeps, ahead, values, gates);
      SyncWarp();
      const int32_t end = place.offset + n;
      const StatePlace next = t + n < slice.n && end == p.pages.page_tokens
                                  ? PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + t + n)
                                  : StatePlace{place.page, end};
      const int next_n = RowsAt(t + n, next);
      LoadAhead(t + n, next_n, ahead);
      Steps(n, decay, s, sums);
      T* to = p.out.row<T>(slice.first_row + t) + c;
      HEDDLE_UNROLL
      for (int i = 0; i < kOwnRows; ++i) {
        const float sum = Fma(skip, values[i], sums[i]);
        const T out = RoundTo(p.gates ? sum * Silu(gates[i]) : sum, T());
        if (OwnRow(i) < n && has_channel()) to[OwnRow(i) * static_cast<int>(p.out.stride)] = out;
      }
      t += n;
      if (!keeps && (t == slice.n || end == p.pages.page_tokens)) Store(place.page, s);
      place = next;
      n = next_n;
    }
  }

  // Rows from the slice's row t on, at `place`, that are taken together: they end where parts do.
  HEDDLE_DEVICE int RowsAt(int t, const StatePlace& place) const {
    const int left = slice.n - t, room = Rows::kRows - place.offset % Rows::kRows;
    return left < room ? left : room;
  }

  // Makes of n rows what lanes share.
  HEDDLE_DEVICE void Prepare(const StatePlace& place, int n, bool keeps, const Ahead& ahead,
                             float (&values)[kOwnRows], float (&gates)[kOwnRows]) const {
    HEDDLE_UNROLL
    for (int row = 0; row < Rows::kRows; ++row) {
      HEDDLE_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        rows.factors.Set(row * Rows::kFactors + 32 * i + Lane(), ToFloat(ahead.factors[row][i]));
      }
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = OwnRow(i);
      const bool is_there = row < n && has_channel();
      const float made = Softplus(ToFloat(ahead.steps[i]));
      const float step = is_there ? made : 0.0f;
      values[i] = ToFloat(ahead.values[i]);
      gates[i] = ToFloat(ahead.gates[i]);
      rows.updates.SetAs((row * Rows::kChannels + Lane() / kLanes) * 2,
                         Group<float, 2>{{step, step * values[i]}});
      if (!keeps || !is_there) continue;
      *StepAt(place.page, place.offset + row) = step;
      *ValueAt(place.page, place.offset + row) = values[i];
    }
  }
};

// BlockX: channels. BlockY: a sequence.
template <typename T, int kStates, int kLanes>
HEDDLE_KERNEL HEDDLE_BOUNDS(ScanThreads(kLanes), kStates > kUsualStates ? 2
                                                 : kLanes > 1           ? 4
                                                                        : 10)
    SelectiveScanKernel(HEDDLE_PARAMS(SelectiveParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockY());
  if (slice.n == 0) return;
  constexpr int kChannels = ScanThreads(kLanes) / kLanes;
  const int64_t c = static_cast<int64_t>(BlockX()) * kChannels + ThreadX() / kLanes;
  Selection<T, kStates, kLanes>{p, slice, c, SelectedRows<kStates, kLanes>(SharedArena())}.Run();
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

// Whether lanes share a channel: where there are rows to prepare side by side, or blocks are few,
// some three for each place that a large GPU has for one. Bits do not depend on it.
bool SharesChannels(const SelectiveParams& params, int64_t rows, int32_t n_seqs) {
  constexpr int64_t kLeastOfSequence = 4, kMostBlocks = 1536;
  const int64_t lanes = params.conv.channels * kSharingLanes;
  return rows >= kLeastOfSequence * n_seqs ||
         n_seqs * CeilDiv(lanes, ScanThreads(kSharingLanes)) <= kMostBlocks;
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
  const SelectiveParams params = ParamsOf(batch, args);
  const LaunchShape keep = {.grid_x = batch.all.n_seqs, .threads = kKeepThreads};
  const auto scan = [&]<typename T, int kStates, int kLanes>() {
    const LaunchShape shape = {
        .grid_x = CeilDiv(params.conv.channels * kLanes, ScanThreads(kLanes)),
        .grid_y = batch.all.n_seqs,
        .threads = ScanThreads(kLanes),
        .shared_bytes = SelectedRows<kStates, kLanes>::kBytes};
    return Launch(SelectiveScanKernel<T, kStates, kLanes>, shape, stream, params);
  };
  const bool shares = SharesChannels(params, args.out.rows, batch.all.n_seqs);
  return ForActivation(act, [&]<typename T>(T) {
    Error error;
    if (params.key_dim <= kUsualStates) {
      error = shares ? scan.template operator()<T, kUsualStates, kSharingLanes>()
                     : scan.template operator()<T, kUsualStates, 1>();
    } else {
      error = shares ? scan.template operator()<T, kMaxSelectedRows, kSharingLanes>()
                     : scan.template operator()<T, kMaxSelectedRows, 1>();
    }
    return error != kSuccess ? error : Launch(SelectiveKeepKernel<T>, keep, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
