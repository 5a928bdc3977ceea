// The recurrence of kGatedDelta and kMamba2 (kernels/recurrence.h), with the convolution before it.
//
// A block has kColumns columns of one head of one sequence and keeps S of them in registers from
// the first row to the last: a warp has kGroup columns and kDepth rows of S, transposed, as sums of
// matrix instructions, 16 columns by 8 rows each. Rows are computed in parts of kScanRows
// positions, as on the CPU (recurrence_part.cuh). Of a part:
//   S^T times its queries and keys: the sums' registers are the left matrix as they are, once each
//     number is two terms of BF16; warps' shares of the sum over d are added in order
//   u of its rows, one after the other: a lane has a column, and 16 coefficients for each row
//   its outputs: u times coefficients, by matrix instructions
//   S moves on: u times keys, by matrix instructions, added to the decayed S in F32, so that S
//     itself is never rounded to less
// So a decode reads S once and writes it once in 16 tokens, and a prompt touches it in registers
// alone. Heads that share a key head convolve and multiply its keys each for themselves: for 32
// heads of 128 x 128 that is no launch and no memory between. Where sequences have many rows, a
// launch before has made them (recurrence_end.cu), and a block has as many warps again, which bring
// the next part while these compute this one (kAhead).
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/state/recurrence_part.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kGroups = kColumns / kGroup;
constexpr int kMaxDeep = kMaxStateRows / kDepth;
constexpr int kMaxWarps = kGroups * kMaxDeep;

// What a block has in shared memory beside parts.
struct ScanMemory {
  HEDDLE_DEVICE ScanMemory(int deep, SharedArena& arena)
      : shares(arena.Take<float>(deep * 2 * kColumns * kRowPitch)),
        updates(arena.Take<BFloat16>(deep * kGroups * kWarpUpdates)) {}

  static int Bytes(int deep) {
    return SharedBytesFor<float>(deep * 2 * kColumns * kRowPitch) +
           SharedBytesFor<BFloat16>(deep * kGroups * kWarpUpdates);
  }
  static constexpr int kUpdates = kGroup * kPairPitch;  // one term
  static constexpr int kWarpUpdates = 4 * kUpdates;

  Shared<float> shares;      // [deep][queries, then keys][column][at]: S's products with them
  Shared<BFloat16> updates;  // of each warp: [as they are, decayed to the part's end][term][column]
                             // [at]
};

// The warps that have S. `warp` is one of theirs.
template <typename T, bool kDelta>
struct Scan {
  using Parts = PartsOf<T, kDelta>;
  const RecurrenceParams& p;
  const StateSlice& slice;
  const Parts& parts;
  const ScanMemory m;
  const int warp;

  HEDDLE_DEVICE int group() const { return warp % kGroups; }
  HEDDLE_DEVICE int share() const { return warp / kGroups; }  // of S's rows
  // Of the head, the first of a lane's two neighbouring columns.
  HEDDLE_DEVICE int column() const {
    return parts.tile * kColumns + group() * kGroup + Lane() / 4 * 2;
  }
  HEDDLE_DEVICE bool has_column(int e) const { return column() + e < p.value_dim; }
  // Rows of S from this warp's first on.
  HEDDLE_DEVICE int depth() const { return p.key_dim - share() * kDepth; }

  // Calls fn with each number of S that a lane has, and where it is in a head's S.
  template <typename Fn>
  HEDDLE_DEVICE void ForState(float (&s)[kDepth / 8][4], Fn fn) const {
    HEDDLE_UNROLL
    for (int tile = 0; tile < kDepth / 8; ++tile) {
      HEDDLE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int d = 8 * tile + Lane() % 4 * 2 + e;
        if (d >= depth()) continue;
        const int64_t at =
            (static_cast<int64_t>(parts.head) * p.key_dim + share() * kDepth + d) * p.value_dim +
            column();
        fn(at, s[tile][e], s[tile][2 + e]);
      }
    }
  }
  HEDDLE_DEVICE bool HasPairs(const float* state) const {
    return p.value_dim % 2 == 0 && reinterpret_cast<uint64_t>(state) % sizeof(Vec8) == 0;
  }
  HEDDLE_DEVICE void LoadState(int64_t page, float (&s)[kDepth / 8][4]) const {
    const float* state = PageOf(p.pages, page) + p.state_at;
    if (HasPairs(state)) {
      if (has_column(0)) {
        ForState(s, [&](int64_t at, float& first, float& second) {
          const auto pair = LoadGroup<2>(state + at);
          first = pair.item[0];
          second = pair.item[1];
        });
      }
      return;
    }
    ForState(s, [&](int64_t at, float& first, float& second) {
      if (has_column(0)) first = state[at];
      if (has_column(1)) second = state[at + 1];
    });
  }
  HEDDLE_DEVICE void StoreState(int64_t page, float (&s)[kDepth / 8][4]) const {
    float* state = PageOf(p.pages, page) + p.state_at;
    if (HasPairs(state)) {
      if (has_column(0)) {
        ForState(s, [&](int64_t at, float first, float second) {
          StoreGroup(state + at, Group<float, 2>{{first, second}});
        });
      }
      return;
    }
    ForState(s, [&](int64_t at, float first, float second) {
      if (has_column(0)) state[at] = first;
      if (has_column(1)) state[at + 1] = second;
    });
  }

  HEDDLE_DEVICE int SharesAt(int share, bool of_keys, int column) const {
    return ((2 * share + of_keys) * kColumns + column) * kRowPitch;
  }

  // This warp's share of S's products with queries and keys.
  HEDDLE_DEVICE void Multiply(const PartMemory& part_of, const ScanPart& part,
                              const float (&s)[kDepth / 8][4]) const {
    constexpr int kTiles = kScanRows / kTile;
    float of_queries[kTiles][4], of_keys[kTiles][4];
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      Clear(of_queries[tile]);
      Clear(of_keys[tile]);
    }
    HEDDLE_UNROLL
    for (int step = 0; step < kDepth / 16; ++step) {
      if (16 * step >= depth()) break;
      uint32_t a[2][4];
      HEDDLE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&sums)[4] = s[2 * step + i / 2];
        const TermPairs terms = TermsOf(sums[i % 2 * 2], sums[i % 2 * 2 + 1]);
        a[0][i] = terms.high;
        a[1][i] = terms.low;
      }
      const int d = share() * kDepth + 16 * step;
      HEDDLE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        if (!part.touches(tile * kTile)) continue;
        uint32_t b[2][2];
        part_of.queries.Right(tile * kTile, d, b);
        MultiplyTerms(of_queries[tile], a, b);
        if constexpr (kDelta) {
          part_of.keys.Right(tile * kTile, d, b);
          MultiplyTerms(of_keys[tile], a, b);
        }
      }
    }
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int column = group() * kGroup + Lane() / 4 + 8 * half;
        const int at = tile * kTile + Lane() % 4 * 2;
        const float(&q)[4] = of_queries[tile];
        m.shares.SetAs(SharesAt(share(), false, column) + at,
                       Group<float, 2>{{q[2 * half], q[2 * half + 1]}});
        if constexpr (kDelta) {
          const float(&k)[4] = of_keys[tile];
          m.shares.SetAs(SharesAt(share(), true, column) + at,
                         Group<float, 2>{{k[2 * half], k[2 * half + 1]}});
        }
      }
    }
  }

  // u of a lane's column: those of kept rows as they are, zeros behind the step's rows.
  HEDDLE_DEVICE void Solve(const PartMemory& part_of, const ScanPart& part,
                           float (&u)[kScanRows]) const {
    const int column = group() * kGroup + Lane() % kGroup;
    GetRow(part_of.values, column * kRowPitch, u);
    if constexpr (kDelta) {
      float seen[kScanRows];
      GetRow(m.shares, SharesAt(0, true, column), seen);
      for (int share = 1; share < parts.deep; ++share) {
        float more[kScanRows];
        GetRow(m.shares, SharesAt(share, true, column), more);
        HEDDLE_UNROLL
        for (int at = 0; at < kScanRows; ++at) seen[at] += more[at];
      }
      float factors[kScanRows];
      GetRow(part_of.wholes, 0, factors);
      HEDDLE_UNROLL
      for (int at = 0; at < kScanRows; ++at) seen[at] *= factors[at];
      GetRow(part_of.gains, 0, factors);
      HEDDLE_UNROLL
      for (int j = 0; j < kScanRows; ++j) {
        if (j >= part.first) u[j] = factors[j] * (u[j] - seen[j]);
        HEDDLE_UNROLL
        for (int i = j / 4 * 4; i < kScanRows; i += 4) {
          if (i + 3 <= j) continue;
          const auto four = part_of.in_update.GetAs<Group<float, 4>>(j * kScanRows + i);
          HEDDLE_UNROLL
          for (int e = 0; e < 4; ++e) {
            if (i + e > j) seen[i + e] = Fma(four.item[e], u[j], seen[i + e]);
          }
        }
      }
    } else {
      float gains[kScanRows];
      GetRow(part_of.gains, 0, gains);
      HEDDLE_UNROLL
      for (int at = 0; at < kScanRows; ++at) u[at] *= gains[at];
    }
  }

  // Keeps in the page u of rows that few follow there. Sums of g are kept by a later launch: the
  // head's other blocks may still read those that have their places.
  HEDDLE_DEVICE void Keep(const ScanPart& part, const float (&u)[kScanRows]) const {
    const int behind = RowsBehind(slice, p.pages.page_tokens, part.t + part.n - 1,
                                  part.place.offset + part.n - 1);
    if (behind >= 2 * kScanRows || share() > 0) return;
    const int column = parts.tile * kColumns + ColumnOf(group() * kGroup + Lane() % kGroup);
    if (Lane() >= kGroup || column >= p.value_dim) return;
    float* to = PageOf(p.pages, part.place.page) + p.updates_at +
                PartOf(parts.head, part.place.offset) * p.value_dim + column;
    HEDDLE_UNROLL
    for (int at = 0; at < kScanRows; ++at) {
      if (part.has(at) && behind + part.end() - 1 - at < 2 * kScanRows) {
        to[static_cast<int64_t>(at) * p.value_dim] = u[at];
      }
    }
  }

  // The terms of u, and of u decayed to the part's end, to where the warp's lanes get them as left
  // matrices from.
  HEDDLE_DEVICE void Spread(const PartMemory& part_of, const float (&u)[kScanRows]) const {
    const bool decayed = Lane() >= kGroup;
    float since[kScanRows];
    GetRow(part_of.since, 0, since);
    Group<uint32_t, 4> words[2][2];
    HEDDLE_UNROLL
    for (int i = 0; i < kScanRows / 2; ++i) {
      const float first = decayed ? since[2 * i] * u[2 * i] : u[2 * i];
      const float second = decayed ? since[2 * i + 1] * u[2 * i + 1] : u[2 * i + 1];
      const TermPairs terms = TermsOf(first, second);
      words[0][i / 4].item[i % 4] = terms.high;
      words[1][i / 4].item[i % 4] = terms.low;
    }
    SyncWarp();  // the part before has been read
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = UpdatesAt(decayed, i / 2) + Lane() % kGroup * kPairPitch + i % 2 * 8;
      m.updates.SetAs(at, words[i / 2][i % 2]);
    }
    SyncWarp();
  }
  HEDDLE_DEVICE int UpdatesAt(bool decayed, int term) const {
    return warp * ScanMemory::kWarpUpdates + (2 * decayed + term) * ScanMemory::kUpdates;
  }
  HEDDLE_DEVICE void LoadUpdates(bool decayed, uint32_t (&a)[2][4]) const {
    const int from = Lane() % 16 * kPairPitch + Lane() / 16 * 8;
    HEDDLE_UNROLL
    for (int term = 0; term < 2; ++term) {
      LoadMatrix4(a[term], m.updates, UpdatesAt(decayed, term) + from);
    }
  }

  // Outputs of rows [begin, begin + kTile) of the part.
  HEDDLE_DEVICE void Output(const PartMemory& part_of, const ScanPart& part, int begin) const {
    uint32_t a[2][4], b[2][2], words[4];
    LoadUpdates(false, a);
    LoadMatrix4(words, part_of.in_output,
                (Lane() / 16 * kScanRows + begin + Lane() % 8) * kPairPitch + Lane() / 8 % 2 * 8);
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = words[i];
    float sums[4];
    Clear(sums);
    MultiplyTerms(sums, a, b);
    const float skip = p.skip != nullptr ? p.skip[parts.head] : 0.0f;
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int index = group() * kGroup + Lane() / 4 + e / 2 * 8;
      const int at = begin + Lane() % 4 * 2 + e % 2;
      float of_state = m.shares.Get(SharesAt(0, false, index) + at);
      for (int share = 1; share < parts.deep; ++share) {
        of_state += m.shares.Get(SharesAt(share, false, index) + at);
      }
      float out = Fma(part_of.wholes.Get(at), of_state, sums[e]);
      out = Fma(skip, part_of.values.Get(index * kRowPitch + at), out);
      if (part.has(at) && has_column(e / 2)) {
        p.out.row<T>(parts.RowOf(part.t + at - part.first))[static_cast<int64_t>(parts.head) *
                                                                p.value_dim +
                                                            column() + e / 2] = RoundTo(out, T());
      }
    }
  }

  // Moves S on to the end of a whole part, whose updates are spread.
  HEDDLE_DEVICE void Fold(const PartMemory& part_of, float (&s)[kDepth / 8][4]) const {
    uint32_t a[2][4];
    LoadUpdates(true, a);
    const float whole = part_of.wholes.Get(kScanRows - 1);
    HEDDLE_UNROLL
    for (int step = 0; step < kDepth / 16; ++step) {
      if (16 * step >= depth()) break;
      uint32_t b[2][2][2];
      part_of.keys.Across(share() * kDepth + 16 * step, b[0], b[1]);
      HEDDLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sums[4];
        Clear(sums);
        MultiplyTerms(sums, a, b[half]);
        float(&of)[4] = s[2 * step + half];
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) of[e] = Fma(whole, of[e], sums[e]);
      }
    }
  }

  // Behind a barrier after Multiply.
  HEDDLE_DEVICE void Finish(const PartMemory& part_of, const ScanPart& part,
                            float (&s)[kDepth / 8][4]) const {
    float u[kScanRows];
    Solve(part_of, part, u);
    Spread(part_of, u);
    if (part.t + part.n < slice.n) Fold(part_of, s);
    HEDDLE_UNROLL
    for (int begin = 0; begin < kScanRows; begin += kTile) {
      const bool is_own = begin / kTile % (parts.deep < 2 ? 1 : 2) == share();
      if (is_own && part.touches(begin)) Output(part_of, part, begin);
    }
    Keep(part, u);
  }

  // A whole part that a page keeps.
  HEDDLE_DEVICE void TakeIn(const PartMemory& part_of, float (&s)[kDepth / 8][4]) const {
    float u[kScanRows];
    GetRow(part_of.values, (group() * kGroup + Lane() % kGroup) * kRowPitch, u);
    Spread(part_of, u);
    Fold(part_of, s);
  }
};

// Where a slice's parts are.
struct Walk {
  const RecurrenceParams& p;
  const StateSlice& slice;

  HEDDLE_DEVICE ScanPart First() const {
    ScanPart part;
    part.place = {slice.page, slice.offset};
    part.first = slice.offset % kScanRows;
    part.n = Rows(part);
    return part;
  }
  HEDDLE_DEVICE bool IsLast(const ScanPart& part) const { return part.t + part.n >= slice.n; }
  HEDDLE_DEVICE ScanPart After(const ScanPart& part) const {
    ScanPart next;
    next.t = part.t + part.n;
    next.place = {part.place.page, part.place.offset + part.n};
    if (next.place.offset == p.pages.page_tokens && next.t < slice.n) {
      next.place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + next.t);
    }
    next.n = Rows(next);
    return next;
  }
  // Whether S at the part's beginning is what its page has to keep: where rows may be taken back,
  // that of the first part of the slice there, else that of the last.
  HEDDLE_DEVICE bool Stays(const ScanPart& part) const {
    const int32_t begin = part.place.offset - part.first;
    if (!slice.is_final()) return part.t == 0 || begin == 0;
    return begin + kScanRows == p.pages.page_tokens || IsLast(part);
  }
  // The page that has S before the slice, or -1; and whether it is before the part that ends there.
  struct From {
    int64_t page;
    int32_t end;
    bool is_behind;
  };
  HEDDLE_DEVICE From Begin() const {
    From from = {slice.offset > 0 ? slice.page : slice.page_before, p.pages.page_tokens, false};
    if (slice.offset > 0) from.end = slice.offset - slice.offset % kScanRows;
    if (from.page >= 0) from.is_behind = BorderOf(p.pages, from.page, from.end) != from.end;
    return from;
  }

 private:
  HEDDLE_DEVICE int Rows(const ScanPart& part) const {
    const int left = slice.n - part.t, room = kScanRows - part.first;
    return left < room ? left : room;
  }
};

// A block of which all warps bring a part and then compute it.
template <typename T, bool kDelta>
HEDDLE_DEVICE void RunInTurns(const PartsOf<T, kDelta>& parts, const Walk& walk,
                              SharedArena& arena) {
  const PartMemory of(parts.deep, arena);
  const Scan<T, kDelta> scan{parts.p, parts.slice, parts, {parts.deep, arena}, WarpIndex()};
  float s[kDepth / 8][4] = {};
  const Walk::From from = walk.Begin();
  bool moved = from.is_behind || parts.slice.offset == 0;  // S is not what the page has
  if (from.page >= 0) scan.LoadState(from.page, s);
  if (from.is_behind) {
    parts.Recall(of, from.page, from.end - kScanRows);
    SyncThreads();
    scan.TakeIn(of, s);
    SyncThreads();
  }
  for (ScanPart part = walk.First(); part.n > 0; part = walk.After(part)) {
    parts.Bring(of, part);
    if (moved && walk.Stays(part)) scan.StoreState(part.place.page, s);
    moved = true;
    SyncThreads();
    parts.Terms(of, part);
    SyncThreads();
    parts.Coefficients(of, part);
    scan.Multiply(of, part, s);
    SyncThreads();
    scan.Finish(of, part, s);
    SyncThreads();
  }
}

// A block of which the second half of the warps bring parts, one ahead of the first half. All pass
// the same barriers: before the first part four, six if a page keeps one, and two for each part.
template <typename T, bool kDelta>
HEDDLE_DEVICE void BringAhead(const PartsOf<T, kDelta>& parts, const Walk& walk,
                              SharedArena& arena) {
  const PartMemory of[2] = {{parts.deep, arena}, {parts.deep, arena}};
  const Walk::From from = walk.Begin();
  if (from.is_behind) {
    parts.Recall(of[1], from.page, from.end - kScanRows);
    SyncThreads();
    SyncThreads();
  }
  ScanPart part = walk.First();
  typename PartsOf<T, kDelta>::Ahead ahead;
  parts.Bring(of[0], part);
  SyncThreads();
  parts.Terms(of[0], part);
  SyncThreads();
  parts.Coefficients(of[0], part);
  part = walk.After(part);
  parts.LoadAhead(part, ahead);
  SyncThreads();
  for (int stage = 1;; stage = 1 - stage) {  // while the part before is computed
    const PartMemory& to = stage == 0 ? of[0] : of[1];
    if (part.n > 0) parts.Place(to, part, ahead);
    SyncThreads();
    if (part.n > 0) {
      const ScanPart next = walk.After(part);
      parts.LoadAhead(next, ahead);
      parts.Coefficients(to, part);
      part = next;
      SyncThreads();
      continue;
    }
    SyncThreads();
    return;
  }
}
template <typename T, bool kDelta>
HEDDLE_DEVICE void ComputeBehind(const PartsOf<T, kDelta>& parts, const Walk& walk,
                                 SharedArena& arena) {
  const PartMemory of[2] = {{parts.deep, arena}, {parts.deep, arena}};
  const Scan<T, kDelta> scan{parts.p, parts.slice, parts, {parts.deep, arena}, WarpIndex()};
  float s[kDepth / 8][4] = {};
  const Walk::From from = walk.Begin();
  bool moved = from.is_behind || parts.slice.offset == 0;
  if (from.page >= 0) scan.LoadState(from.page, s);
  if (from.is_behind) {
    SyncThreads();
    scan.TakeIn(of[1], s);
    SyncThreads();
  }
  SyncThreads();
  SyncThreads();
  SyncThreads();
  int stage = 0;
  for (ScanPart part = walk.First(); part.n > 0; part = walk.After(part)) {
    const PartMemory& with = stage == 0 ? of[0] : of[1];
    stage = 1 - stage;
    if (moved && walk.Stays(part)) scan.StoreState(part.place.page, s);
    moved = true;
    scan.Multiply(with, part, s);
    SyncThreads();
    scan.Finish(with, part, s);
    SyncThreads();
  }
}

// BlockX: a tile of columns of a head. BlockY: a sequence.
template <typename T, bool kDelta, bool kAhead>
HEDDLE_KERNEL HEDDLE_BOUNDS((kAhead ? 2 : 1) * 32 * kMaxWarps, kAhead ? 1 : 2)
    RecurrenceScanKernel(HEDDLE_PARAMS(RecurrenceParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockY());
  if (slice.n == 0) return;
  const int tiles = (p.value_dim + kColumns - 1) / kColumns;
  const int warps = kGroups * DeepFor(p.key_dim);
  const ScanTeam team = {kAhead ? 32 * warps : 0, warps};
  const PartsOf<T, kDelta> parts(p, slice, team, BlockX() % tiles, BlockX() / tiles);
  const Walk walk{p, slice};
  SharedArena arena;
  if constexpr (!kAhead) {
    RunInTurns(parts, walk, arena);
  } else if (ThreadX() < team.first) {
    ComputeBehind(parts, walk, arena);
  } else {
    BringAhead(parts, walk, arena);
  }
}

}  // namespace

Error LaunchRecurrenceScan(const StateBatch& batch, const RecurrenceArgs& args, const float* mixed,
                           int32_t max_shared_bytes, DType act, Stream stream) {
  const RecurrenceParams params = ParamsOf(batch, args, mixed);
  const int deep = DeepFor(params.key_dim), warps = kGroups * deep;
  const int part = PartMemory::Bytes(deep), rest = ScanMemory::Bytes(deep);
  const bool ahead = mixed != nullptr && 2 * part + rest <= max_shared_bytes;
  const LaunchShape shape = {.grid_x = params.n_heads * CeilDiv(params.value_dim, kColumns),
                             .grid_y = params.batch.all.n_seqs,
                             .threads = 32 * warps * (ahead ? 2 : 1),
                             .shared_bytes = part * (ahead ? 2 : 1) + rest};
  return ForActivation(act, [&]<typename T>(T) {
    if (params.delta) {
      return ahead ? Launch(RecurrenceScanKernel<T, true, true>, shape, stream, params)
                   : Launch(RecurrenceScanKernel<T, true, false>, shape, stream, params);
    }
    return ahead ? Launch(RecurrenceScanKernel<T, false, true>, shape, stream, params)
                 : Launch(RecurrenceScanKernel<T, false, false>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
