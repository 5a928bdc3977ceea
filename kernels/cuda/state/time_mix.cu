// RWKV-7's time mix (WkvArgs). A block has one head of one sequence, and S in registers from its
// first row to the last: kTeam lanes have a column, each every kTeam-th group of four rows of it.
// Up to kScanRows rows are prepared side by side, a warp each, then taken in one after the other,
// for which no thread waits for another team, and then normed and gated, a warp each.
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/state/state_slices.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kTeam = 4;
constexpr int kDim = kMaxTimeMixDim;
constexpr int kMostThreads = kTeam * kDim;
constexpr int kStride = 4 * kTeam;              // rows of S from a lane's group to its next
constexpr float kDecay = -0.6065306597126334f;  // -exp(-1/2)
// The square of the least length that a key is divided by.
constexpr float kLeastSquares = 1e-24f;
constexpr float kMostInverse = 1e12f;

enum Part : int { kW, kK, kV, kUnit, kGain };  // of a row, as WkvState keeps them

struct TimeMixParams {
  StateBatch batch;
  StatePages pages;
  Tensor r, k, v, w, a, m, first_value, gate, out;
  const float* key_scale;
  const float* key_mix;
  const float* bonus;
  const float* norm;
  const float* norm_bias;
  int64_t state_at;
  int64_t rows_at;
  int64_t width;
  float norm_eps;
  int32_t head_dim;
};

// Shared memory: parts of rows [kScanRows][kParts][kDim] and their r and outputs [kScanRows][kDim],
// zeros behind head_dim.
struct MixMemory {
  HEDDLE_DEVICE explicit MixMemory(SharedArena arena)
      : parts(arena.Take<float>(kScanRows * static_cast<int>(WkvState::kParts) * kDim)),
        r(arena.Take<float>(kScanRows * kDim)),
        out(arena.Take<float>(kScanRows * kDim)) {}
  static int Bytes() {
    return SharedBytesFor<float>(kScanRows * static_cast<int>(WkvState::kParts) * kDim) +
           2 * SharedBytesFor<float>(kScanRows * kDim);
  }
  HEDDLE_DEVICE Shared<float> RowOf(int row, int part) const {
    return parts.From((row * static_cast<int>(WkvState::kParts) + part) * kDim);
  }
  Shared<float> parts, r, out;
};

template <typename T>
struct TimeMixer {
  static constexpr int kOwn = kDim / kTeam;  // rows of S that a lane has
  const TimeMixParams& p;
  const StateSlice slice;
  const MixMemory memory;
  const int head;
  const int64_t at;  // column of the head's first

  HEDDLE_DEVICE TimeMixer(const TimeMixParams& params, const StateSlice& s, int h)
      : p(params),
        slice(s),
        memory(SharedArena()),
        head(h),
        at(static_cast<int64_t>(h) * params.head_dim) {}

  HEDDLE_DEVICE int column() const { return ThreadX() / kTeam; }
  // The row of S that is the lane's i-th.
  HEDDLE_DEVICE static int RowOf(int i) { return i / 4 * kStride + ThreadX() % kTeam * 4 + i % 4; }
  HEDDLE_DEVICE float* StateAt(int64_t page) const {
    return PageOf(p.pages, page) + p.state_at + at * p.head_dim + column();
  }
  HEDDLE_DEVICE bool HasRow(int i) const { return column() < p.head_dim && RowOf(i) < p.head_dim; }
  HEDDLE_DEVICE void LoadState(int64_t page, float (&s)[kOwn]) const {
    const float* from = StateAt(page);
    HEDDLE_UNROLL
    for (int i = 0; i < kOwn; ++i) s[i] = HasRow(i) ? from[RowOf(i) * p.head_dim] : 0.0f;
  }
  HEDDLE_DEVICE void StoreState(int64_t page, const float (&s)[kOwn]) const {
    float* to = StateAt(page);
    HEDDLE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      if (HasRow(i)) to[RowOf(i) * p.head_dim] = s[i];
    }
  }
  // The place where a page keeps a position: part 0 of this head.
  HEDDLE_DEVICE float* KeptAt(int64_t page, int32_t offset) const {
    return PageOf(p.pages, page) + p.rows_at +
           offset % (2 * kScanRows) * WkvState::kParts * p.width + at;
  }

  // Prepares what S takes in of the slice's row t, as shared row `row`. By a warp.
  HEDDLE_DEVICE void Mix(int t, int row) const {
    const int64_t from = slice.first_row + t;
    const auto value = [&](const Tensor& x, int i) { return ToFloat(x.row<T>(from)[at + i]); };
    float squares = 0;
    for (int i = Lane(); i < p.head_dim; i += 32) {
      const float k = value(p.k, i), a = Sigmoid(value(p.a, i));
      float v = value(p.v, i);
      if (p.m.data != nullptr) {
        v = Fma(Sigmoid(value(p.m, i)), value(p.first_value, i) - v, v);
      } else {
        p.first_value.row<T>(from)[at + i] = p.v.row<T>(from)[at + i];
      }
      const float unit = k * p.key_scale[at + i];
      squares = Fma(unit, unit, squares);
      memory.RowOf(row, kW).Set(i, Exp(kDecay * Sigmoid(value(p.w, i))));
      memory.RowOf(row, kK).Set(i, Fma(k * (a - 1.0f), p.key_mix[at + i], k));
      memory.RowOf(row, kV).Set(i, v);
      memory.RowOf(row, kUnit).Set(i, unit);
      memory.RowOf(row, kGain).Set(i, a);
      memory.r.Set(row * kDim + i, value(p.r, i));
    }
    squares = WarpSum(squares);
    const float factor = squares > kLeastSquares ? Rsqrt(squares) : kMostInverse;
    for (int i = Lane(); i < p.head_dim; i += 32) {
      const float unit = memory.RowOf(row, kUnit).Get(i) * factor;
      memory.RowOf(row, kUnit).Set(i, unit);
      memory.RowOf(row, kGain).Set(i, unit * memory.RowOf(row, kGain).Get(i));
    }
  }

  // Shared rows [0, n) from what a page keeps of positions from `offset` on.
  HEDDLE_DEVICE void LoadKept(int64_t page, int32_t offset, int n) const {
    constexpr int kParts = static_cast<int>(WkvState::kParts);
    for (int unit = WarpIndex(); unit < n * kParts; unit += ThreadCount() / 32) {
      const int row = unit / kParts, part = unit % kParts;
      const float* from = KeptAt(page, offset + row) + part * p.width;
      for (int i = Lane(); i < p.head_dim; i += 32) memory.RowOf(row, part).Set(i, from[i]);
    }
  }
  HEDDLE_DEVICE void Keep(const StatePlace& place, int row) const {
    for (int part = 0; part < WkvState::kParts; ++part) {
      float* to = KeptAt(place.page, place.offset) + part * p.width;
      for (int i = Lane(); i < p.head_dim; i += 32) to[i] = memory.RowOf(row, part).Get(i);
    }
  }

  HEDDLE_DEVICE static Group<float, 4> Four(Shared<float> row, int i) {
    return row.GetAs<Group<float, 4>>(i * kStride + ThreadX() % kTeam * 4);
  }

  // Takes shared rows [0, n) in; with `outputs` writes theirs.
  HEDDLE_DEVICE void TakeIn(int n, bool outputs, float (&s)[kOwn]) const {
    for (int row = 0; row < n; ++row) {
      float seen = 0;
      HEDDLE_UNROLL
      for (int i = 0; i < kOwn / 4; ++i) {
        const auto unit = Four(memory.RowOf(row, kUnit), i);
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) seen = Fma(unit.item[e], s[4 * i + e], seen);
      }
      seen += ShuffleXor(seen, 1);
      seen += ShuffleXor(seen, 2);
      const float value = memory.RowOf(row, kV).Get(column());
      float out = 0;
      HEDDLE_UNROLL
      for (int i = 0; i < kOwn / 4; ++i) {
        const auto decay = Four(memory.RowOf(row, kW), i);
        const auto gain = Four(memory.RowOf(row, kGain), i);
        const auto key = Four(memory.RowOf(row, kK), i);
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& own = s[4 * i + e];
          own = Fma(key.item[e], value, Fma(-gain.item[e], seen, decay.item[e] * own));
        }
        if (!outputs) continue;
        const auto r = Four(memory.r.From(row * kDim), i);
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) out = Fma(r.item[e], s[4 * i + e], out);
      }
      if (!outputs) continue;
      out += ShuffleXor(out, 1);
      out += ShuffleXor(out, 2);
      if (ThreadX() % kTeam == 0) memory.out.Set(row * kDim + column(), out);
    }
  }

  // Norms and gates the output of the slice's row t, shared row `row`, where the layer has norms
  // and gates. By a warp.
  HEDDLE_DEVICE void Finish(int t, int row) const {
    const int64_t to = slice.first_row + t;
    const Shared<float> out = memory.out.From(row * kDim);
    float sum = 0, dot = 0;
    for (int i = Lane(); i < p.head_dim; i += 32) {
      sum += out.Get(i);
      dot = Fma(memory.r.Get(row * kDim + i) * memory.RowOf(row, kK).Get(i), p.bonus[at + i], dot);
    }
    const float n = static_cast<float>(p.head_dim);
    const float mean = p.norm != nullptr ? WarpSum(sum) / n : 0.0f;
    const float bonus = WarpSum(dot);
    float squares = 0;
    for (int i = Lane(); i < p.head_dim; i += 32) {
      const float x = out.Get(i) - mean;
      squares = Fma(x, x, squares);
    }
    const float factor = Rsqrt(WarpSum(squares) / n + p.norm_eps);
    for (int i = Lane(); i < p.head_dim; i += 32) {
      float x = out.Get(i);
      if (p.norm != nullptr) x = Fma((x - mean) * factor, p.norm[at + i], p.norm_bias[at + i]);
      x = Fma(bonus, memory.RowOf(row, kV).Get(i), x);
      if (p.gate.data != nullptr) x *= ToFloat(p.gate.row<T>(to)[at + i]);
      p.out.row<T>(to)[at + i] = RoundTo(x, T());
    }
  }

  // Takes kept positions [from, to) of a page in, which are in one part.
  HEDDLE_DEVICE void Replay(int64_t page, int32_t from, int32_t to, float (&s)[kOwn]) const {
    if (from >= to) return;
    LoadKept(page, from, to - from);
    SyncThreads();
    TakeIn(to - from, /*outputs=*/false, s);
    SyncThreads();
  }

  HEDDLE_DEVICE void Run() const {
    for (int i = ThreadX(); i < kScanRows * static_cast<int>(WkvState::kParts) * kDim;
         i += ThreadCount()) {
      if (i % kDim >= p.head_dim) memory.parts.Set(i, 0.0f);
      if (i < kScanRows * kDim && i % kDim >= p.head_dim) memory.r.Set(i, 0.0f);
    }
    float s[kOwn];
    const int32_t page_tokens = p.pages.page_tokens;
    const int32_t begin = slice.offset - slice.offset % kScanRows;
    const int64_t page = slice.offset > 0 ? slice.page : slice.page_before;
    if (page < 0) {
      HEDDLE_UNROLL
      for (int i = 0; i < kOwn; ++i) s[i] = 0;
    } else {
      LoadState(page, s);
      const int32_t end = slice.offset > 0 ? begin : page_tokens;
      Replay(page, BorderOf(p.pages, page, end), end, s);
    }
    for (int t = 0; t < slice.n;) {
      const StatePlace place = PlaceOf(p.batch, page_tokens, slice.first_row + t);
      const int first = place.offset % kScanRows;
      const int n = slice.n - t < kScanRows - first ? slice.n - t : kScanRows - first;
      // As in a recurrence's scan: where rows may be taken back, pages keep S of the first part of
      // the slice there, else of the last.
      const bool stays = slice.is_final()
                             ? place.offset - first + kScanRows == page_tokens || t + n == slice.n
                             : t == 0 || place.offset == 0;
      if (stays) StoreState(place.page, s);
      Replay(place.page, place.offset - first, place.offset, s);
      for (int row = WarpIndex(); row < n; row += ThreadCount() / 32) Mix(t + row, row);
      SyncThreads();
      TakeIn(n, /*outputs=*/true, s);
      SyncThreads();
      for (int row = WarpIndex(); row < n; row += ThreadCount() / 32) {
        Finish(t + row, row);
        const StatePlace own = {place.page, place.offset + row};
        if (RowsBehind(slice, page_tokens, t + row, own.offset) < 2 * kScanRows) Keep(own, row);
      }
      SyncThreads();
      t += n;
    }
  }
};

// BlockX: a head. BlockY: a sequence.
template <typename T>
HEDDLE_KERNEL HEDDLE_BOUNDS(kMostThreads, 2) TimeMixKernel(HEDDLE_PARAMS(TimeMixParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockY());
  if (slice.n > 0) TimeMixer<T>(p, slice, BlockX()).Run();
}

// Notes in each page where the part begins that its S is before, which all heads have read. BlockX:
// a sequence.
HEDDLE_KERNEL BordersKernel(HEDDLE_PARAMS(TimeMixParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockX());
  for (int i = 0; i < slice.n && ThreadX() == 0;) {
    const StatePlace place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + i);
    const int left = p.pages.page_tokens - place.offset;
    const int n = slice.n - i < left ? slice.n - i : left;
    const int32_t at = slice.is_final() ? place.offset + n - 1 : place.offset;
    SetBorder(p.pages, place.page, at - at % kScanRows);
    i += n;
  }
}

}  // namespace

Error LaunchTimeMix(const StateBatch& batch, const WkvArgs& args, DType act, Stream stream) {
  const WkvState layout(args.n_heads, args.head_dim, 0);
  const TimeMixParams params = {.batch = batch,
                                .pages = PagesOf(args.cache, args.page_tokens),
                                .r = args.r,
                                .k = args.k,
                                .v = args.v,
                                .w = args.w,
                                .a = args.a,
                                .m = args.m,
                                .first_value = args.first_value,
                                .gate = args.gate,
                                .out = args.out,
                                .key_scale = args.key_scale,
                                .key_mix = args.key_mix,
                                .bonus = args.bonus,
                                .norm = args.norm,
                                .norm_bias = args.norm_bias,
                                .state_at = layout.state,
                                .rows_at = layout.rows,
                                .width = layout.width,
                                .norm_eps = args.norm_eps,
                                .head_dim = args.head_dim};
  const LaunchShape shape = {.grid_x = args.n_heads,
                             .grid_y = batch.all.n_seqs,
                             .threads = 32 * CeilDiv(args.head_dim * kTeam, 32),
                             .shared_bytes = MixMemory::Bytes()};
  const Error error = ForActivation(
      act, [&]<typename T>(T) { return Launch(TimeMixKernel<T>, shape, stream, params); });
  if (error != kSuccess) return error;
  return Launch(BordersKernel, {.grid_x = batch.all.n_seqs, .threads = 32}, stream, params);
}

}  // namespace heddle::kernels::cuda
