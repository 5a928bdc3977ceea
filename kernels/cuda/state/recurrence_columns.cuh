// The warps that have S of a block's columns (recurrence_scan.cu): what they make of a part in
// shared memory, and S in a page.
#pragma once

#include "kernels/cuda/state/recurrence_part.cuh"

namespace heddle::kernels::cuda::recurrence {

inline constexpr int kGroups = kColumns / kGroup;

// A block's shared memory before its parts.
template <int kWidth, int kTerms>
struct ScanMemory {
  static constexpr int kShares = kWidth / kDepth;
  static constexpr int kUpdates = kGroup * kPairPitch;  // one term of a warp's
  static constexpr int kWarpUpdates = kTerms * kUpdates;

  HEDDLE_DEVICE explicit ScanMemory(SharedArena arena)
      : shares(arena.Take<float>(kShares * 2 * kColumns * kRowPitch)),
        updates(arena.Take<BFloat16>(kShares * kGroups * kWarpUpdates)) {}

  static constexpr int kBytes = SharedBytesFor<float>(kShares * 2 * kColumns * kRowPitch) +
                                SharedBytesFor<BFloat16>(kShares * kGroups * kWarpUpdates);

  Shared<float> shares;      // [share][queries, then keys][column][at]: S's products with them
  Shared<BFloat16> updates;  // of each warp: [term][column][at]
};

// The arena behind so many parts.
template <int kWidth, int kTerms>
HEDDLE_DEVICE SharedArena BehindParts(int parts) {
  SharedArena arena;
  const int bytes = ScanMemory<kWidth, kTerms>::kBytes + parts * PartMemory<kWidth, kTerms>::kBytes;
  static_cast<void>(arena.Take<uint16_t>(bytes / 2));
  return arena;
}

// The warps that have S. `warp` is one of theirs.
template <typename T, bool kDelta, int kWidth>
struct Scan {
  using Parts = PartsOf<T, kDelta, kWidth>;
  static constexpr int kTerms = kTermsOf<T>;
  static constexpr int kProducts = kProductsOf<kTerms>;
  using Part = PartMemory<kWidth, kTerms>;
  using Memory = ScanMemory<kWidth, kTerms>;
  static constexpr int kKeys = Part::Rows::kKeys;
  const RecurrenceParams& p;
  const StateSlice& slice;
  const Parts& parts;
  const Memory m;
  const int warp;

  HEDDLE_DEVICE int group() const { return warp % kGroups; }
  HEDDLE_DEVICE int share() const { return warp / kGroups; }  // of S's rows
  // The first of a lane's two neighbouring columns, counted in the head.
  HEDDLE_DEVICE int column() const {
    return parts.tile * kColumns + group() * kGroup + Lane() / 4 * 2;
  }
  HEDDLE_DEVICE bool has_column(int e) const { return column() + e < p.value_dim; }
  // Rows of S from this warp's first on.
  HEDDLE_DEVICE int depth() const { return p.key_dim - share() * kDepth; }

  // The lane's first number of S in a page. Of each tile of 8 rows it has two, and their
  // neighbours.
  HEDDLE_DEVICE float* StateAt(int64_t page) const {
    const int64_t row = static_cast<int64_t>(parts.head) * p.key_dim + share() * kDepth;
    return PageOf(p.pages, page) + p.state_at + (row + Lane() % 4 * 2) * p.value_dim + column();
  }
  // Calls fn with those numbers that the head has, and where they are. Addresses follow one another
  // so that no register keeps their distances.
  template <typename Float, typename Fn>
  HEDDLE_DEVICE void ForState(Float* at, float (&s)[kDepth / 8][4], Fn fn) const {
    const int rows = depth() - Lane() % 4 * 2;
    const int64_t stride = p.value_dim;
    HEDDLE_UNROLL
    for (int tile = 0; tile < kDepth / 8; ++tile) {
      if (8 * tile < rows) fn(at, s[tile][0], s[tile][2]);
      if (8 * tile + 1 < rows) fn(at + stride, s[tile][1], s[tile][3]);
      at += 8 * stride;
    }
  }
  HEDDLE_DEVICE bool HasPairs(const float* state) const {
    return p.value_dim % 2 == 0 && reinterpret_cast<uint64_t>(state) % sizeof(Vec8) == 0;
  }
  HEDDLE_DEVICE void LoadState(int64_t page, float (&s)[kDepth / 8][4]) const {
    const float* state = StateAt(page);
    if (!has_column(0)) return;
    if (HasPairs(state)) {
      return ForState(state, s, [&](const float* at, float& first, float& second) {
        const auto pair = LoadGroup<2>(at);
        first = pair.item[0];
        second = pair.item[1];
      });
    }
    ForState(state, s, [&](const float* at, float& first, float& second) {
      first = at[0];
      if (has_column(1)) second = at[1];
    });
  }
  HEDDLE_DEVICE void StoreState(int64_t page, float (&s)[kDepth / 8][4]) const {
    float* state = StateAt(page);
    if (!has_column(0)) return;
    if (HasPairs(state)) {
      return ForState(state, s, [&](float* at, float first, float second) {
        StoreGroup(at, Group<float, 2>{{first, second}});
      });
    }
    ForState(state, s, [&](float* at, float first, float second) {
      at[0] = first;
      if (has_column(1)) at[1] = second;
    });
  }

  HEDDLE_DEVICE int SharesAt(int share, bool of_keys, int column) const {
    return ((2 * share + of_keys) * kColumns + column) * kRowPitch;
  }

  // This warp's share of S's products with queries and keys of kTiles x kTile rows.
  template <int kTiles>
  HEDDLE_DEVICE void MultiplyRows(const Part& of, int begin,
                                  const float (&s)[kDepth / 8][4]) const {
    constexpr int kRights = kDelta ? 2 * kTiles : kTiles;  // of queries, then of keys
    float sums[kRights][4];
    HEDDLE_UNROLL
    for (auto& of_tile : sums) Clear(of_tile);
    HEDDLE_UNROLL
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t a[kTerms][4], b[kRights][kTerms][2];
      HEDDLE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&numbers)[4] = s[2 * step + i / 2];
        const auto terms = TermsOf<kTerms>(numbers[i % 2 * 2], numbers[i % 2 * 2 + 1]);
        HEDDLE_UNROLL
        for (int term = 0; term < kTerms; ++term) a[term][i] = terms.term[term];
      }
      HEDDLE_UNROLL
      for (int i = 0; i < kRights; ++i) {
        of.rows.Right(i / kTiles * kKeys + begin + i % kTiles * kTile, share() * kDepth + 16 * step,
                      b[i]);
      }
      // Neighbouring instructions have sums of their own, so that none waits for another's.
      HEDDLE_UNROLL
      for (int product = 0; product < kProducts; ++product) {
        HEDDLE_UNROLL
        for (int i = 0; i < kRights; ++i) MultiplyTerm(product, sums[i], a, b[i]);
      }
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kRights; ++i) {
      HEDDLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int column = group() * kGroup + Lane() / 4 + 8 * half;
        const int at = begin + i % kTiles * kTile + Lane() % 4 * 2;
        m.shares.SetAs(SharesAt(share(), i >= kTiles, column) + at,
                       Group<float, 2>{{sums[i][2 * half], sums[i][2 * half + 1]}});
        if (kTiles > 1 || i == 0) continue;  // updates are made of zeros where no rows are
        m.shares.SetAs(SharesAt(share(), true, column) + kTile - begin + Lane() % 4 * 2,
                       Group<float, 2>{{0.0f, 0.0f}});
      }
    }
  }
  HEDDLE_DEVICE void Multiply(const Part& of, const ScanPart& part,
                              const float (&s)[kDepth / 8][4]) const {
    if (part.first < kTile && part.end() > kTile) {
      MultiplyRows<2>(of, 0, s);
    } else {
      MultiplyRows<1>(of, part.first < kTile ? 0 : kTile, s);
    }
  }

  // u of a lane's column: those of kept rows as they are, zeros behind the step's rows.
  HEDDLE_DEVICE void Solve(const Part& of, const ScanPart& part, float (&u)[kScanRows]) const {
    const int column = group() * kGroup + Lane() % kGroup;
    GetRow(of.values, column * kRowPitch, u);
    if constexpr (kDelta) {
      float seen[kScanRows];
      GetRow(m.shares, SharesAt(0, true, column), seen);
      HEDDLE_UNROLL_BY(1)
      for (int share = 1; share < parts.deep; ++share) {
        float more[kScanRows];
        GetRow(m.shares, SharesAt(share, true, column), more);
        HEDDLE_UNROLL
        for (int at = 0; at < kScanRows; ++at) seen[at] += more[at];
      }
      float factors[kScanRows];
      GetRow(of.wholes, 0, factors);
      HEDDLE_UNROLL
      for (int at = 0; at < kScanRows; ++at) seen[at] *= factors[at];
      GetRow(of.gains, 0, factors);
      HEDDLE_UNROLL
      for (int j = 0; j < kScanRows; ++j) {
        if (j >= part.first) u[j] = factors[j] * (u[j] - seen[j]);
        HEDDLE_UNROLL
        for (int i = j / 4 * 4; i < kScanRows; i += 4) {
          if (i + 3 <= j) continue;
          const auto four = of.in_update.template GetAs<Group<float, 4>>(j * kScanRows + i);
          HEDDLE_UNROLL
          for (int e = 0; e < 4; ++e) {
            if (i + e > j) seen[i + e] = Fma(four.item[e], u[j], seen[i + e]);
          }
        }
      }
    } else {
      float gains[kScanRows];
      GetRow(of.gains, 0, gains);
      HEDDLE_UNROLL
      for (int at = 0; at < kScanRows; ++at) u[at] *= gains[at];
    }
  }

  // Keeps in the page u of rows that few follow there. Sums of g are kept by a later launch: the
  // head's other blocks may still read those that have their places.
  HEDDLE_DEVICE void Keep(const ScanPart& part, const float (&u)[kScanRows]) const {
    const int behind =
        RowsBehind(slice, p.pages.page_tokens, part.t + part.n - 1, part.place.offset + part.n - 1);
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

  // The terms of u, and of u decayed to the part's end, as left matrices. Lanes 0 to 15 make the
  // first, the others the second, which take the same place one after the other.
  struct Updates {
    uint32_t plain[kTerms][4];
    uint32_t decayed[kTerms][4];
  };
  HEDDLE_DEVICE void Spread(const Part& of, const float (&u)[kScanRows], Updates& to) const {
    const bool decayed = Lane() >= kGroup;
    float since[kScanRows];
    GetRow(of.since, 0, since);
    Group<uint32_t, 4> words[kTerms][2];
    HEDDLE_UNROLL
    for (int i = 0; i < kScanRows / 2; ++i) {
      const float first = decayed ? since[2 * i] * u[2 * i] : u[2 * i];
      const float second = decayed ? since[2 * i + 1] * u[2 * i + 1] : u[2 * i + 1];
      const auto terms = TermsOf<kTerms>(first, second);
      HEDDLE_UNROLL
      for (int term = 0; term < kTerms; ++term) {
        words[term][i / 4].item[i % 4] = terms.term[term];
      }
    }
    SyncWarp();  // the part before has been read
    if (!decayed) Put(words);
    SyncWarp();
    Take(to.plain);
    SyncWarp();
    if (decayed) Put(words);
    SyncWarp();
    Take(to.decayed);
  }
  HEDDLE_DEVICE void Put(const Group<uint32_t, 4> (&words)[kTerms][2]) const {
    HEDDLE_UNROLL
    for (int term = 0; term < kTerms; ++term) {
      const int at = UpdatesAt(term) + Lane() % kGroup * kPairPitch;
      m.updates.SetAs(at, words[term][0]);
      m.updates.SetAs(at + 8, words[term][1]);
    }
  }
  HEDDLE_DEVICE void Take(uint32_t (&a)[kTerms][4]) const {
    const int from = Lane() % 16 * kPairPitch + Lane() / 16 * 8;
    HEDDLE_UNROLL
    for (int term = 0; term < kTerms; ++term)
      LoadMatrix4(a[term], m.updates, UpdatesAt(term) + from);
  }
  HEDDLE_DEVICE int UpdatesAt(int term) const { return (warp * kTerms + term) * Memory::kUpdates; }

  // Outputs of rows [begin, begin + kTile) of the part.
  HEDDLE_DEVICE void Output(const Part& of, const ScanPart& part, int begin,
                            const uint32_t (&a)[kTerms][4]) const {
    uint32_t b[kTerms][2];
    LoadRights(of.in_output, (begin + Lane() % 8) * kPairPitch + Lane() / 8 % 2 * 8,
               kScanRows * kPairPitch, b);
    float sums[4];
    Clear(sums);
    HEDDLE_UNROLL
    for (int product = 0; product < kProducts; ++product) MultiplyTerm(product, sums, a, b);
    const float skip = p.skip != nullptr ? p.skip[parts.head] : 0.0f;
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int index = group() * kGroup + Lane() / 4 + e / 2 * 8;
      const int at = begin + Lane() % 4 * 2 + e % 2;
      float of_state = m.shares.Get(SharesAt(0, false, index) + at);
      HEDDLE_UNROLL_BY(1)
      for (int share = 1; share < parts.deep; ++share) {
        of_state += m.shares.Get(SharesAt(share, false, index) + at);
      }
      float out = Fma(of.wholes.Get(at), of_state, sums[e]);
      out = Fma(skip, of.values.Get(index * kRowPitch + at), out);
      if (part.has(at) && has_column(e / 2)) {
        p.out.row<T>(parts.RowOf(
            part.t + at -
            part.first))[static_cast<int64_t>(parts.head) * p.value_dim + column() + e / 2] =
            RoundTo(out, T());
      }
    }
  }

  // Moves S on to the end of a whole part, by its decayed updates.
  HEDDLE_DEVICE void Fold(const Part& of, const uint32_t (&a)[kTerms][4],
                          float (&s)[kDepth / 8][4]) const {
    const float whole = of.wholes.Get(kScanRows - 1);
    HEDDLE_UNROLL
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t b[2][kTerms][2];
      of.rows.Across(kKeys, share() * kDepth + 16 * step, b);
      float sums[2][4];
      Clear(sums[0]);
      Clear(sums[1]);
      HEDDLE_UNROLL
      for (int product = 0; product < kProducts; ++product) {
        HEDDLE_UNROLL
        for (int half = 0; half < 2; ++half) MultiplyTerm(product, sums[half], a, b[half]);
      }
      HEDDLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float(&numbers)[4] = s[2 * step + half];
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) numbers[e] = Fma(whole, numbers[e], sums[half][e]);
      }
    }
  }

  // Behind a barrier after Multiply.
  HEDDLE_DEVICE void Finish(const Part& of, const ScanPart& part, float (&s)[kDepth / 8][4]) const {
    float u[kScanRows];
    Solve(of, part, u);
    Updates updates;
    Spread(of, u, updates);
    if (part.t + part.n < slice.n) Fold(of, updates.decayed, s);
    HEDDLE_UNROLL
    for (int begin = 0; begin < kScanRows; begin += kTile) {
      const bool is_own = begin / kTile % (parts.deep < 2 ? 1 : 2) == share();
      if (is_own && part.touches(begin)) Output(of, part, begin, updates.plain);
    }
    Keep(part, u);
  }

  // A whole part that a page keeps.
  HEDDLE_DEVICE void TakeIn(const Part& of, float (&s)[kDepth / 8][4]) const {
    float u[kScanRows];
    GetRow(of.values, (group() * kGroup + Lane() % kGroup) * kRowPitch, u);
    Updates updates;
    Spread(of, u, updates);
    Fold(of, updates.decayed, s);
  }
};

}  // namespace heddle::kernels::cuda::recurrence
