// A part of kScanRows positions as the scan of a recurrence takes it (recurrence_scan.cu), in
// shared memory, and the threads that bring it there: keys and queries as terms of BF16, v, factors
// of decay, and the coefficients by which a row's u and output take those of the rows before it.
//
// Rows are numbered by their position in the part (`at`, from 0 to 15), whether a page kept them,
// the step has them, or neither; of the latter all is zero. An instruction's result for a row takes
// that row alone, and coefficients of later rows are zeros, so that bits do not depend on which are
// there.
#pragma once

#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/state/recurrence_params.cuh"
#include "kernels/cuda/state/term_rows.cuh"

namespace heddle::kernels::cuda::recurrence {

inline constexpr int kColumns = 32;  // of v that a block has
inline constexpr int kGroup = 16;    // columns of a warp: rows of its matrix instructions
inline constexpr int kDepth = 64;    // rows of S that a warp has
inline constexpr int kTile = 8;      // rows of a part that a matrix instruction gives
// Distance of columns in arrays [column][at], so that eight lanes' 16 bytes are in different banks:
// of floats, and of BF16.
inline constexpr int kRowPitch = 20;
inline constexpr int kPairPitch = 24;

// Warps that S is divided over for its rows.
constexpr int DeepFor(int key_dim) { return (key_dim + kDepth - 1) / kDepth; }

// Columns are numbered so that a lane's two, rows g and g + 8 of an instruction, are neighbours.
HEDDLE_DEVICE int ColumnOf(int m) { return m / kGroup * kGroup + 2 * (m % 8) + m / 8 % 2; }
HEDDLE_DEVICE int IndexOfColumn(int column) {
  return column / kGroup * kGroup + column % kGroup / 2 + column % 2 * 8;
}

// Sixteen floats of a row, each a number per position.
HEDDLE_DEVICE void GetRow(Shared<float> from, int at, float (&x)[kScanRows]) {
  HEDDLE_UNROLL
  for (int i = 0; i < kScanRows; i += 4) {
    const auto four = from.GetAs<Group<float, 4>>(at + i);
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) x[i + e] = four.item[e];
  }
}

template <int kWidth, int kTerms>
struct PartMemory {
  using Rows = TermRows<kWidth, kTerms>;
  HEDDLE_DEVICE explicit PartMemory(SharedArena arena)
      : values(arena.Take<float>(kColumns * kRowPitch)),
        in_update(arena.Take<float>(kScanRows * kScanRows)),
        in_output(arena.Take<BFloat16>(kTerms * kScanRows * kPairPitch)),
        decays(arena.Take<float>(kScanRows)),
        gains(arena.Take<float>(kScanRows)),
        wholes(arena.Take<float>(kScanRows)),
        since(arena.Take<float>(kScanRows)),
        rows{arena.Take<BFloat16>(2 * kScanRows * Rows::kPitch)} {}

  static constexpr int kBytes =
      SharedBytesFor<float>(kColumns * kRowPitch) + SharedBytesFor<float>(kScanRows * kScanRows) +
      SharedBytesFor<BFloat16>(kTerms * kScanRows * kPairPitch) +
      4 * SharedBytesFor<float>(kScanRows) + SharedBytesFor<BFloat16>(2 * kScanRows * Rows::kPitch);

  Shared<float> values;        // [column][at]: v, of kept rows u
  Shared<float> in_update;     // [j][at]: coefficients of u_j in the update of `at`
  Shared<BFloat16> in_output;  // [term][at][j]: the same in its output
  Shared<float> decays;        // [at]: sums of g since the part began
  Shared<float> gains;         // [at]: 1 of kept rows
  Shared<float> wholes;        // [at]: by which S has decayed
  Shared<float> since;         // [at]: by which u will have decayed at the part's end
  Rows rows;
};

// Warps of a block that bring parts ahead.
template <int kWidth>
inline constexpr int kAheadWarps = kWidth / 32;

// A part on its way, in F32.
template <int kWidth>
struct AheadMemory {
  HEDDLE_DEVICE explicit AheadMemory(SharedArena arena)
      : values(arena.Take<float>(kScanRows * kColumns)),
        rows(arena.Take<float>(2 * kScanRows * kWidth)) {}
  static constexpr int kBytes =
      SharedBytesFor<float>(kScanRows * kColumns) + SharedBytesFor<float>(2 * kScanRows * kWidth);
  Shared<float> values;  // v [at][column]
  Shared<float> rows;    // queries and keys, as TermRows has them
};

// The step of a lane's row and its beta, as the input has them.
template <typename T>
struct RawStep {
  T of = {};
  T beta = {};
};

// Starts a copy of four neighbouring floats of which `count` are there, and zeros. `fours`: these
// are all or none, and aligned.
HEDDLE_DEVICE void CopyFour(Shared<float> to, int i, const float* from, int count, bool fours) {
  if (fours) return CopyAsync16(to, i, from, count > 0);
  HEDDLE_UNROLL
  for (int e = 0; e < 4; ++e) CopyAsync4(to, i + e, from + e, e < count);
}

// The rows of a part.
struct ScanPart {
  int t = 0;      // of the slice, the first that the step has
  int n = 0;      // that the step has
  int first = 0;  // `at` of row t: so many are kept
  StatePlace place = {0, 0};

  HEDDLE_DEVICE bool has(int at) const { return at >= first && at < first + n; }
  HEDDLE_DEVICE int end() const { return first + n; }
  // Whether the step has any of the rows [at, at + kTile).
  HEDDLE_DEVICE bool touches(int at) const { return first < at + kTile && end() > at; }
};

// The threads that bring parts: whole warps of a block, whose barriers are its own.
struct ScanTeam {
  int first = 0;  // thread
  int warps = 0;

  HEDDLE_DEVICE int thread() const { return ThreadX() - first; }
  HEDDLE_DEVICE int warp() const { return thread() / 32; }
  HEDDLE_DEVICE int threads() const { return 32 * warps; }
};

// Brings the parts of one block: columns `tile` of a head of a sequence. Between its functions,
// what a part needs of other threads of the team is behind a barrier of the block.
template <typename T, bool kDelta, int kWidth>
struct PartsOf {
  static constexpr int kTerms = kTermsOf<T>;
  static constexpr int kProducts = kProductsOf<kTerms>;
  using Part = PartMemory<kWidth, kTerms>;
  using Coming = AheadMemory<kWidth>;
  static constexpr int kKeys = Part::Rows::kKeys;
  const RecurrenceParams& p;
  const StateSlice slice;
  const ScanTeam team;
  const int tile, head, key_head, deep;

  HEDDLE_DEVICE PartsOf(const RecurrenceParams& params, const StateSlice& s, const ScanTeam& t,
                        int block_of_columns, int h)
      : p(params),
        slice(s),
        team(t),
        tile(block_of_columns),
        head(h),
        key_head(params.tiled ? h % params.n_key_heads : h / (params.n_heads / params.n_key_heads)),
        deep(DeepFor(params.key_dim)) {}

  HEDDLE_DEVICE int64_t RowOf(int t) const { return slice.first_row + t; }
  HEDDLE_DEVICE int64_t QueryChannel() const { return static_cast<int64_t>(key_head) * p.key_dim; }
  HEDDLE_DEVICE int64_t KeyChannel() const { return p.keys + QueryChannel(); }
  HEDDLE_DEVICE int64_t ValueChannel() const {
    return 2 * p.keys + static_cast<int64_t>(head) * p.value_dim + tile * kColumns;
  }
  HEDDLE_DEVICE bool has_column(int column) const { return tile * kColumns + column < p.value_dim; }

  // Reads the first `count` positions, as a page keeps them, of the part that `offset` is in.
  HEDDLE_DEVICE void TakeKept(const Part& m, int64_t page, int32_t offset, int count) const {
    const float* keys = PageOf(p.pages, page) + p.keys_at + PartOf(key_head, offset) * p.key_dim;
    for (int i = team.thread(); count > 0 && i < p.key_dim * kScanRows; i += team.threads()) {
      if (i % kScanRows < count) {
        m.rows.Set(kKeys + i % kScanRows, i / kScanRows, keys[i]);
      }
    }
    const float* updates = PageOf(p.pages, page) + p.updates_at +
                           PartOf(head, offset) * p.value_dim + tile * kColumns + Lane();
    for (int at = team.warp(); at < count; at += team.warps) {
      m.values.Set(IndexOfColumn(Lane()) * kRowPitch + at,
                   has_column(Lane()) ? updates[static_cast<int64_t>(at) * p.value_dim] : 0.0f);
    }
  }

  // Factors of decay of a part, of which a page keeps the sums of g of the first `part.first` rows,
  // and of whose n rows lanes have steps. By one warp.
  HEDDLE_DEVICE void Decay(const Part& m, const ScanPart& part, int64_t page, int32_t offset,
                           const RowStep& own) const {
    const int at = Lane() % kScanRows;
    const float* kept = DecaysAt(p, page, head, offset);
    float sum = part.first > 0 ? kept[at < part.first ? at : part.first - 1] : 0.0f;
    for (int i = part.first; i < part.end(); ++i) {
      const float decay = Shuffle(own.decay, i);
      if (i <= at) sum += decay;
    }
    const float last = Shuffle(sum, kScanRows - 1);
    if (Lane() >= kScanRows) return;
    m.decays.Set(at, sum);
    m.gains.Set(at, at < part.first ? 1.0f : part.has(at) ? own.gain : 0.0f);
    m.wholes.Set(at, Exp(sum));
    m.since.Set(at, Exp(last - sum));
  }

  // A whole part that a page keeps, for S to take in.
  HEDDLE_DEVICE void Recall(const Part& m, int64_t page, int32_t offset) const {
    for (int at = team.warp(); at < kScanRows; at += team.warps) {
      m.rows.Clear(kKeys + at, p.key_dim);
    }
    TakeKept(m, page, offset, kScanRows);
    if (team.warp() == 0) {
      Decay(m, {.t = 0, .n = 0, .first = kScanRows, .place = {page, offset}}, page, offset, {0, 0});
    }
  }

  // The steps of the part's rows, a lane each.
  HEDDLE_DEVICE RowStep OwnStep(const ScanPart& part) const {
    if (!part.has(Lane())) return {0, 0};
    return StepOf<T>(p, RowOf(part.t + Lane() - part.first), head, kDelta);
  }

  // Channel c of the slice's row t.
  HEDDLE_DEVICE float Made(int t, int64_t c) const {
    if (p.mixed != nullptr) return p.mixed[RowOf(t) * p.conv.channels + c];
    return Convolved<T>(p.conv, p.pages, slice, t, c);
  }

  // Any part: what is kept of it, and q, k and v of its rows as F32, by warps that have 32 channels
  // of a row each time. Terms follows.
  HEDDLE_DEVICE void Bring(const Part& m, const ScanPart& part) const {
    const int32_t begin = part.place.offset - part.first;
    for (int at = team.warp(); at < kScanRows; at += team.warps) {
      if (part.has(at)) continue;
      m.rows.Clear(at, 0);
      m.rows.Clear(kKeys + at, at < part.first ? p.key_dim : 0);
      if (at >= part.end()) m.values.Set(Lane() * kRowPitch + at, 0.0f);
    }
    TakeKept(m, part.place.page, begin, part.first);
    const int chunks = (p.key_dim + 31) / 32, pieces = 2 * chunks + 1;
    HEDDLE_UNROLL_BY(1)
    for (int i = 0; i < part.n; ++i) {
      HEDDLE_UNROLL_BY(1)
      for (int piece = team.warp(); piece < pieces; piece += team.warps) {
        const int at = part.first + i;
        const bool is_value = piece == 2 * chunks, is_key = piece >= chunks;
        const int d = (is_value ? 0 : is_key ? piece - chunks : piece) * 32 + Lane();
        const bool is_there = is_value ? has_column(d) : d < p.key_dim;
        const int64_t c = (is_value ? ValueChannel() : is_key ? KeyChannel() : QueryChannel()) + d;
        const float x = is_there ? Made(part.t + i, c) : 0.0f;
        if (is_value) {
          m.values.Set(IndexOfColumn(d) * kRowPitch + at, x);
        } else if (is_there) {
          m.rows.SetWhole((is_key ? kKeys : 0) + at, d, x);
        }
      }
    }
    if (team.warp() == 0) Decay(m, part, part.place.page, begin, OwnStep(part));
  }

  // Turns F32 into terms, each row by a warp, and where no launch before has done it gives keys and
  // queries of kGatedDelta the length 1, these then 1 / sqrt(key_dim) of it.
  HEDDLE_DEVICE void Terms(const Part& m, const ScanPart& part) const {
    constexpr int kMost = kWidth / 32;
    HEDDLE_UNROLL_BY(1)
    for (int unit = team.warp(); unit < 2 * part.n; unit += team.warps) {
      const bool is_key = unit >= part.n;
      const int row = is_key ? kKeys + part.first + unit - part.n : part.first + unit;
      float x[kMost];
      float squares = 0;
      HEDDLE_UNROLL
      for (int i = 0; i < kMost; ++i) {
        const int d = 32 * i + Lane();
        x[i] = d < p.key_dim ? m.rows.Whole(row, d) : 0.0f;
        if (d < p.key_dim) squares = Fma(x[i], x[i], squares);
      }
      float factor = 1;
      if (kDelta && p.mixed == nullptr) {
        factor = InverseLength(squares);
        if (!is_key) factor *= Rsqrt(static_cast<float>(p.key_dim));
      }
      SyncWarp();
      HEDDLE_UNROLL
      for (int i = 0; i < kMost; ++i) {
        const int d = 32 * i + Lane();
        m.rows.Set(row, d, x[i] * factor);
      }
    }
  }

  // Starts to copy a part that a launch before has made and nothing is kept of. A thread turns
  // those numbers into terms that it copied.
  HEDDLE_DEVICE void LoadAhead(const Coming& m, const ScanPart& part, RawStep<T>& step) const {
    const bool fours = p.key_dim % 4 == 0 && p.value_dim % 4 == 0 && p.conv.channels % 4 == 0;
    const float* from = p.mixed + RowOf(part.t) * p.conv.channels;
    const auto channels = static_cast<int>(p.conv.channels);
    ForAhead([&](int row, int d) {
      const int at = row % kScanRows;
      const int64_t c = row < kScanRows ? QueryChannel() : KeyChannel();
      CopyFour(m.rows, row * kWidth + d, from + at * channels + c + d,
               at < part.n ? p.key_dim - d : 0, fours);
    });
    ForAheadValues([&](int at, int column) {
      CopyFour(m.values, at * kColumns + column, from + at * channels + ValueChannel() + column,
               at < part.n ? p.value_dim - tile * kColumns - column : 0, fours);
    });
    CopyAsyncCommit();
    if (team.warp() > 0 || Lane() >= part.n) return;
    const T* row = p.conv.in.row<T>(RowOf(part.t + Lane()));
    step.of = row[p.step_column + head];
    if constexpr (kDelta) step.beta = row[p.beta_column + head];
  }
  HEDDLE_DEVICE void Place(const Part& m, const Coming& from, const ScanPart& part,
                           const RawStep<T>& step) const {
    CopyAsyncWait<0>();
    ForAhead([&](int row, int d) {
      const auto x = from.rows.template GetAs<Group<float, 4>>(row * kWidth + d);
      m.rows.SetFour(row, d, x);
    });
    ForAheadValues([&](int at, int column) {
      const auto x = from.values.template GetAs<Group<float, 4>>(at * kColumns + column);
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        m.values.Set(IndexOfColumn(column + e) * kRowPitch + at, x.item[e]);
      }
    });
    if (team.warp() > 0) return;
    RowStep own = {0, 0};
    if (Lane() < part.n) own = StepFrom<T>(p, step.of, step.beta, head, kDelta);
    Decay(m, part, part.place.page, part.place.offset, own);
  }
  // The rows of queries and keys, and elements [d, d + 4) of them, that a thread copies ahead; and
  // those of v.
  template <typename Fn>
  HEDDLE_DEVICE void ForAhead(Fn fn) const {
    constexpr int kFours = kWidth / 4, kRows = 32 * kAheadWarps<kWidth> / kFours;
    HEDDLE_UNROLL
    for (int row = 0; row < 2 * kScanRows; row += kRows) {
      fn(row + team.thread() / kFours, team.thread() % kFours * 4);
    }
  }
  template <typename Fn>
  HEDDLE_DEVICE void ForAheadValues(Fn fn) const {
    for (int i = team.thread(); i < kScanRows * kColumns / 4; i += team.threads()) {
      fn(i / (kColumns / 4), i % (kColumns / 4) * 4);
    }
  }

  // Coefficients of u: products of keys with rows' queries and keys, decayed. A warp has those of
  // kTile rows j with all queries, or with all keys.
  HEDDLE_DEVICE void Coefficients(const Part& m, const ScanPart& part) const {
    for (int unit = team.warp(); unit < (kDelta ? 4 : 2); unit += team.warps) {
      const int begin = unit % 2 * kTile;
      const bool of_keys = unit >= 2;
      float c[3][4];  // sums of the largest product, and by turns of the others
      HEDDLE_UNROLL
      for (auto& sums : c) Clear(sums);
      for (int d = 0; d < p.key_dim && begin < part.end(); d += 16) {
        uint32_t a[kTerms][4], b[kTerms][2];
        m.rows.Left(of_keys ? kKeys : 0, d, a);
        m.rows.Right(kKeys + begin, d, b);
        HEDDLE_UNROLL
        for (int i = 0; i < kProducts; ++i) MultiplyTerm(i, c[i == 0 ? 0 : 2 - i % 2], a, b);
      }
      HEDDLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int at = Lane() / 4 + 8 * half, j = begin + Lane() % 4 * 2;
        float of[2];
        HEDDLE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * half + e;
          const float decayed = Exp(m.decays.Get(at) - m.decays.Get(j + e));
          of[e] = j + e <= at ? decayed * (c[0][i] + (c[1][i] + c[2][i])) : 0.0f;
          if (of_keys) m.in_update.Set((j + e) * kScanRows + at, of[e]);
        }
        if (of_keys) continue;
        const auto terms = TermsOf<kTerms>(of[0], of[1]);
        HEDDLE_UNROLL
        for (int term = 0; term < kTerms; ++term) {
          m.in_output.template SetAs<uint32_t>((term * kScanRows + at) * kPairPitch + j,
                                               terms.term[term]);
        }
      }
    }
  }
};

}  // namespace heddle::kernels::cuda::recurrence
