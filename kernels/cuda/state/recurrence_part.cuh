// A part of kScanRows positions as the scan of a recurrence takes it (recurrence_scan.cu), in shared
// memory, and the threads that bring it there: keys and queries as pairs of BF16, v, factors of
// decay, and the coefficients by which a row's u and output take those of the rows before it.
//
// Matrix instructions multiply BF16, and S, keys, queries and u are F32: each is the sum of two
// terms of BF16, its value rounded and what that leaves, rounded, so that 2^-17 of it are lost. Of a
// product, the terms' products are summed in F32 but that of both small ones (2^-18).
//
// Rows are numbered by their position in the part (`at`, from 0 to 15), whether a page kept them,
// the step has them, or neither; of the latter all is zero. An instruction's result for a row takes
// that row alone, and coefficients of later rows are zeros, so that bits do not depend on which are
// there.
#pragma once

#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/state/recurrence_params.cuh"

namespace heddle::kernels::cuda {

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

// Two terms of two numbers, each a pair.
struct TermPairs {
  uint32_t high;
  uint32_t low;
};
HEDDLE_DEVICE TermPairs TermsOf(float a, float b) {
  const BFloat16 type{};
  const uint32_t high = Pack2(a, b, type);
  return {high, Pack2(a - LowFloat(high, type), b - HighFloat(high, type), type)};
}

// c += a * b of terms: a[0] and b[0] are the high ones.
HEDDLE_DEVICE void MultiplyTerms(float (&c)[4], const uint32_t (&a)[2][4],
                                 const uint32_t (&b)[2][2]) {
  Mma16816(c, a[0], b[0], BFloat16());
  Mma16816(c, a[0], b[1], BFloat16());
  Mma16816(c, a[1], b[0], BFloat16());
}

HEDDLE_DEVICE void Clear(float (&c)[4]) {
  HEDDLE_UNROLL
  for (int e = 0; e < 4; ++e) c[e] = 0;
}

// Rows of keys or queries: [at] both terms of key_dim elements, zeros behind them. While they are
// made, a row's space has its F32.
struct TermRows {
  Shared<BFloat16> of;
  int width;  // elements of a term: a multiple of kDepth

  HEDDLE_HOST_DEVICE static int PitchOf(int width) { return 2 * width + 8; }
  HEDDLE_DEVICE int row(int at) const { return at * PitchOf(width); }

  HEDDLE_DEVICE void SetPair(int at, int d, float a, float b) const {
    const TermPairs terms = TermsOf(a, b);
    of.SetAs<uint32_t>(row(at) + d, terms.high);
    of.SetAs<uint32_t>(row(at) + width + d, terms.low);
  }
  HEDDLE_DEVICE void Set(int at, int d, float x) const {
    const BFloat16 high = RoundTo(x, BFloat16());
    of.Set(row(at) + d, high);
    of.Set(row(at) + width + d, RoundTo(x - ToFloat(high), BFloat16()));
  }
  HEDDLE_DEVICE void SetWhole(int at, int d, float x) const {
    of.SetAs<float>(row(at) + 2 * d, x);
  }
  HEDDLE_DEVICE float Whole(int at, int d) const { return of.GetAs<float>(row(at) + 2 * d); }
  // Zeros from element d on. By a warp.
  HEDDLE_DEVICE void Clear(int at, int d) const {
    if (d == 0) {
      for (int i = 8 * Lane(); i < 2 * width; i += 8 * 32) of.SetAs<Vec16>(row(at) + i, Vec16{});
      return;
    }
    for (int i = d + Lane(); i < width; i += 32) Set(at, i, 0.0f);
  }

  // Fragments of elements [d, d + 16): of all rows as a left matrix, of kTile rows from `at` on as
  // a right one whose columns are rows, and of all rows and elements [d, d + 8) and [d + 8, d + 16)
  // as two right ones whose rows are rows.
  HEDDLE_DEVICE void Left(int d, uint32_t (&a)[2][4]) const {
    const int from = row(Lane() % 16) + d + Lane() / 16 * 8;
    LoadMatrix4(a[0], of, from);
    LoadMatrix4(a[1], of, from + width);
  }
  HEDDLE_DEVICE void Right(int at, int d, uint32_t (&b)[2][2]) const {
    uint32_t words[4];
    LoadMatrix4(words, of,
                row(at + Lane() % 8) + d + Lane() / 8 % 2 * 8 + (Lane() >= 16 ? width : 0));
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = words[i];
  }
  HEDDLE_DEVICE void Across(int d, uint32_t (&first)[2][2], uint32_t (&second)[2][2]) const {
    const int from = row(Lane() % 16) + d + Lane() / 16 * 8;
    HEDDLE_UNROLL
    for (int term = 0; term < 2; ++term) {
      uint32_t words[4];
      LoadMatrix4Transposed(words, of, from + term * width);
      HEDDLE_UNROLL
      for (int i = 0; i < 2; ++i) {
        first[term][i] = words[i];
        second[term][i] = words[2 + i];
      }
    }
  }
};

// Sixteen floats of a row, each a number per position.
HEDDLE_DEVICE void GetRow(Shared<float> from, int at, float (&x)[kScanRows]) {
  HEDDLE_UNROLL
  for (int i = 0; i < kScanRows; i += 4) {
    const auto four = from.GetAs<Group<float, 4>>(at + i);
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) x[i + e] = four.item[e];
  }
}

struct PartMemory {
  HEDDLE_DEVICE PartMemory(int deep, SharedArena& arena)
      : keys{arena.Take<BFloat16>(kScanRows * TermRows::PitchOf(deep * kDepth)), deep * kDepth},
        queries{arena.Take<BFloat16>(kScanRows * TermRows::PitchOf(deep * kDepth)), deep * kDepth},
        values(arena.Take<float>(kColumns * kRowPitch)),
        in_update(arena.Take<float>(kScanRows * kScanRows)),
        in_output(arena.Take<BFloat16>(2 * kScanRows * kPairPitch)),
        decays(arena.Take<float>(kScanRows)),
        gains(arena.Take<float>(kScanRows)),
        wholes(arena.Take<float>(kScanRows)),
        since(arena.Take<float>(kScanRows)) {}

  static int Bytes(int deep) {
    return 2 * SharedBytesFor<BFloat16>(kScanRows * TermRows::PitchOf(deep * kDepth)) +
           SharedBytesFor<float>(kColumns * kRowPitch) +
           SharedBytesFor<float>(kScanRows * kScanRows) +
           SharedBytesFor<BFloat16>(2 * kScanRows * kPairPitch) +
           4 * SharedBytesFor<float>(kScanRows);
  }

  TermRows keys;
  TermRows queries;
  Shared<float> values;        // [column][at]: v, of kept rows u
  Shared<float> in_update;     // [j][at]: coefficients of u_j in the update of `at`
  Shared<BFloat16> in_output;  // [term][at][j]: the same in its output
  Shared<float> decays;        // [at]: sums of g since the part began
  Shared<float> gains;         // [at]: 1 of kept rows
  Shared<float> wholes;        // [at]: by which S has decayed
  Shared<float> since;         // [at]: by which u will have decayed at the part's end
};

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
template <typename T, bool kDelta>
struct PartsOf {
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

  HEDDLE_DEVICE int width() const { return deep * kDepth; }
  HEDDLE_DEVICE int64_t RowOf(int t) const { return slice.first_row + t; }
  HEDDLE_DEVICE int64_t QueryChannel() const { return static_cast<int64_t>(key_head) * p.key_dim; }
  HEDDLE_DEVICE int64_t KeyChannel() const { return p.keys + QueryChannel(); }
  HEDDLE_DEVICE int64_t ValueChannel() const {
    return 2 * p.keys + static_cast<int64_t>(head) * p.value_dim + tile * kColumns;
  }
  HEDDLE_DEVICE bool has_column(int column) const {
    return tile * kColumns + column < p.value_dim;
  }

  // What a page keeps of the first `count` positions of the part that `offset` is in.
  HEDDLE_DEVICE void TakeKept(const PartMemory& m, int64_t page, int32_t offset, int count) const {
    const float* keys = PageOf(p.pages, page) + p.keys_at + PartOf(key_head, offset) * p.key_dim;
    for (int i = team.thread(); count > 0 && i < p.key_dim * kScanRows; i += team.threads()) {
      if (i % kScanRows < count) m.keys.Set(i % kScanRows, i / kScanRows, keys[i]);
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
  HEDDLE_DEVICE void Decay(const PartMemory& m, const ScanPart& part, int64_t page, int32_t offset,
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
  HEDDLE_DEVICE void Recall(const PartMemory& m, int64_t page, int32_t offset) const {
    for (int at = team.warp(); at < kScanRows; at += team.warps) m.keys.Clear(at, p.key_dim);
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

  // Any part: what is kept of it, and q, k and v of its rows as F32, by warps that have 32 channels
  // of a row each time. Terms follows.
  HEDDLE_DEVICE void Bring(const PartMemory& m, const ScanPart& part) const {
    const int32_t begin = part.place.offset - part.first;
    for (int at = team.warp(); at < kScanRows; at += team.warps) {
      if (part.has(at)) continue;
      m.queries.Clear(at, 0);
      m.keys.Clear(at, at < part.first ? p.key_dim : 0);
      if (at >= part.end()) m.values.Set(Lane() * kRowPitch + at, 0.0f);
    }
    TakeKept(m, part.place.page, begin, part.first);
    const int chunks = (p.key_dim + 31) / 32, pieces = 2 * chunks + 1;
    for (int unit = team.warp(); unit < part.n * pieces; unit += team.warps) {
      const int i = unit / pieces, piece = unit % pieces, at = part.first + i;
      const auto made = [&](int64_t c) {
        if (p.mixed != nullptr) return p.mixed[RowOf(part.t + i) * p.conv.channels + c];
        return Convolved<T>(p.conv, p.pages, slice, part.t + i, c);
      };
      if (piece == 2 * chunks) {
        m.values.Set(IndexOfColumn(Lane()) * kRowPitch + at,
                     has_column(Lane()) ? made(ValueChannel() + Lane()) : 0.0f);
        continue;
      }
      const int d = piece % chunks * 32 + Lane();
      if (d >= p.key_dim) continue;
      if (piece >= chunks) {
        m.keys.SetWhole(at, d, made(KeyChannel() + d));
      } else {
        m.queries.SetWhole(at, d, made(QueryChannel() + d));
      }
    }
    if (team.warp() == 0) Decay(m, part, part.place.page, begin, OwnStep(part));
  }

  // Turns F32 into terms, each row by a warp, and where no launch before has done it gives keys and
  // queries of kGatedDelta the length 1, these then 1 / sqrt(key_dim) of it.
  HEDDLE_DEVICE void Terms(const PartMemory& m, const ScanPart& part) const {
    constexpr int kMost = kMaxStateRows / 32;
    for (int unit = team.warp(); unit < 2 * part.n; unit += team.warps) {
      const bool is_key = unit >= part.n;
      const TermRows& rows = is_key ? m.keys : m.queries;
      const int at = part.first + unit % part.n;
      float x[kMost];
      float squares = 0;
      HEDDLE_UNROLL
      for (int i = 0; i < kMost; ++i) {
        const int d = 32 * i + Lane();
        x[i] = d < p.key_dim ? rows.Whole(at, d) : 0.0f;
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
        if (d < width()) rows.Set(at, d, x[i] * factor);
      }
    }
  }

  // What threads hold of a part until Place: of one that a launch before has made and nothing is
  // kept of. A thread has two neighbouring elements of every second row, and columns of v of some.
  struct Ahead {
    Group<float, 2> pairs[kScanRows];  // of queries, then of keys
    float values[kScanRows / 2];
    T step, beta;  // of a lane's row; by one warp
  };
  HEDDLE_DEVICE void LoadAhead(const ScanPart& part, Ahead& ahead) const {
    const int d = team.thread() % (width() / 2) * 2, odd = team.thread() / (width() / 2);
    const bool are_pairs = p.key_dim % 2 == 0 && p.conv.channels % 2 == 0;
    HEDDLE_UNROLL
    for (int i = 0; i < kScanRows; ++i) {
      const int at = i % (kScanRows / 2) * 2 + odd;
      const float* from = p.mixed + RowOf(part.t + at) * p.conv.channels +
                          (i < kScanRows / 2 ? QueryChannel() : KeyChannel()) + d;
      ahead.pairs[i] = {{0.0f, 0.0f}};
      if (at >= part.n || d >= p.key_dim) continue;
      if (are_pairs) {
        ahead.pairs[i] = LoadGroup<2>(from);
      } else {
        ahead.pairs[i].item[0] = from[0];
        if (d + 1 < p.key_dim) ahead.pairs[i].item[1] = from[1];
      }
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kScanRows / 2; ++i) {
      const int at = team.warp() + i * team.warps;
      ahead.values[i] = 0;
      if (at >= part.n || !has_column(Lane())) continue;
      ahead.values[i] = p.mixed[RowOf(part.t + at) * p.conv.channels + ValueChannel() + Lane()];
    }
    if (team.warp() > 0 || Lane() >= part.n) return;
    const T* row = p.conv.in.row<T>(RowOf(part.t + Lane()));
    ahead.step = row[p.step_column + head];
    if constexpr (kDelta) ahead.beta = row[p.beta_column + head];
  }
  HEDDLE_DEVICE void Place(const PartMemory& m, const ScanPart& part, const Ahead& ahead) const {
    const int d = team.thread() % (width() / 2) * 2, odd = team.thread() / (width() / 2);
    HEDDLE_UNROLL
    for (int i = 0; i < kScanRows; ++i) {
      const int at = i % (kScanRows / 2) * 2 + odd;
      (i < kScanRows / 2 ? m.queries : m.keys)
          .SetPair(at, d, ahead.pairs[i].item[0], ahead.pairs[i].item[1]);
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kScanRows / 2; ++i) {
      const int at = team.warp() + i * team.warps;
      if (at < kScanRows) m.values.Set(IndexOfColumn(Lane()) * kRowPitch + at, ahead.values[i]);
    }
    if (team.warp() > 0) return;
    RowStep own = {0, 0};
    if (Lane() < part.n) own = StepFrom<T>(p, ahead.step, ahead.beta, head, kDelta);
    Decay(m, part, part.place.page, part.place.offset, own);
  }

  // Coefficients of u: products of keys with rows' queries and keys, decayed. A warp has those of
  // kTile rows j with all queries, or with all keys.
  HEDDLE_DEVICE void Coefficients(const PartMemory& m, const ScanPart& part) const {
    for (int unit = team.warp(); unit < (kDelta ? 4 : 2); unit += team.warps) {
      const int begin = unit % 2 * kTile;
      const bool of_keys = unit >= 2;
      const TermRows& rows = of_keys ? m.keys : m.queries;
      float c[3][4];  // sums of the products of high terms, and of one low one
      HEDDLE_UNROLL
      for (auto& sums : c) Clear(sums);
      for (int d = 0; d < p.key_dim && begin < part.end(); d += 16) {
        uint32_t a[2][4], b[2][2];
        rows.Left(d, a);
        m.keys.Right(begin, d, b);
        Mma16816(c[0], a[0], b[0], BFloat16());
        Mma16816(c[1], a[0], b[1], BFloat16());
        Mma16816(c[2], a[1], b[0], BFloat16());
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
        const TermPairs terms = TermsOf(of[0], of[1]);
        m.in_output.SetAs<uint32_t>(at * kPairPitch + j, terms.high);
        m.in_output.SetAs<uint32_t>((kScanRows + at) * kPairPitch + j, terms.low);
      }
    }
  }
};

}  // namespace heddle::kernels::cuda
