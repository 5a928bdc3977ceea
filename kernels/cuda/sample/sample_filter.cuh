// The tokens of a row that the filters keep, found without sorting by one block.
//
// top_n_sigma, top_k, top_p and min_p keep a prefix of the ranking, typical_p all that are near
// enough to the mean surprise, XTC all up to one token: what is needed of a ranking is one
// threshold. It lies in a range of keys that a histogram of 256 bins narrows, 8 bits a round; as
// soon as few enough tokens are in the range they are listed in shared memory, and later rounds
// read nothing else. The first range is chosen so that this is so from the start for most rows:
//   top_k  the k-th largest of the pieces' maxima: as many tokens are as large at least;
//   top_p  tokens of less than (1 - p) / vocab of the mass do not add up to what p leaves out.
// Measures are counts or masses in integers of 2^-40, so that the order of threads has no part in
// the sums. A bin of 64 bits is two words with a carry between them, since shared memory adds 32
// bits in one operation and 64 in a loop; lanes that share a bin add up first.
#pragma once

#include "kernels/cuda/sample/sample_params.h"
#include "kernels/cuda/sample/sample_pieces.cuh"
#include "kernels/cuda/sample/sample_uniform.cuh"

namespace heddle::kernels::cuda::sample {

// The part of the ranking that is kept: all above `key`, and the first `ties` (by id) of those
// equal to it.
struct Prefix {
  uint32_t key;
  Mass ties;
};
constexpr Prefix kWhole = {0, 0};

// Everything that filters keep a token by but its neighbours' ties.
struct Keep {
  Prefix prefix;
  float min_p;
  Weigh weigh;
  uint32_t highest = 0xFFFFFFFFu;  // tokens of greater keys go
  HEDDLE_DEVICE bool IsLikely(float x) const {
    const float weight = weigh(x);
    return weight >= min_p || weight >= 1.0f;
  }
  // Whether any token of a piece with this maximum may be kept.
  HEDDLE_DEVICE bool Reaches(float max) const { return KeyOf(max) >= prefix.key && IsLikely(max); }
};

// Bit i: element i of a piece is kept; `ties_before` tokens at the prefix's key stand before it.
HEDDLE_DEVICE uint32_t KeptOf(const Elements& e, const Keep& keep, int ties_before) {
  static_assert(kLoads == 4 && 32 * kUnit < 256);  // counts of the four loads in a byte each
  uint32_t mine = 0;
  HEDDLE_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    if (KeyOf(e.x[i]) == keep.prefix.key) mine += 1u << (8 * (i / kUnit));
  }
  const uint32_t inclusive = WarpScan(mine);
  const uint32_t all = Shuffle(inclusive, 31);
  uint32_t kept = 0;
  auto before_load = static_cast<Mass>(ties_before);
  HEDDLE_UNROLL
  for (int j = 0; j < kLoads; ++j) {
    Mass tie = before_load + ((inclusive - mine) >> (8 * j) & 255u);
    HEDDLE_UNROLL
    for (int i = j * kUnit; i < (j + 1) * kUnit; ++i) {
      const uint32_t key = KeyOf(e.x[i]);
      const bool in = key > keep.prefix.key || (key == keep.prefix.key && tie++ < keep.prefix.ties);
      if (in && key <= keep.highest && keep.IsLikely(e.x[i])) kept |= 1u << i;
    }
    before_load += all >> (8 * j) & 255u;
  }
  return kept;
}

// A piece's sum becomes that of its tokens above the prefix's key, and `ties` the number of those
// at it. By the piece's warp.
HEDDLE_DEVICE void SumPrefix(const RowView& row, int piece, const Keep& keep,
                             SamplePiece* summary) {
  const float max = summary->max;
  float sum = 0;
  int ties = 0;
  if (keep.Reaches(max)) {
    const Elements e = LoadPiece(row, piece);
    const Weigh own = {max, keep.weigh.scale};
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t key = KeyOf(e.x[i]);
      const bool in = key > keep.prefix.key && key <= keep.highest;
      if (in && keep.IsLikely(e.x[i])) sum += own(e.x[i]);
      ties += key == keep.prefix.key;
    }
    sum = WarpSum(sum);
    ties = Shuffle(WarpScan(ties), 31);
  }
  if (Lane() == 0) {
    summary->sum = sum;
    summary->ties = ties;
  }
}

// The pieces' sums become those of what is kept, their `ties` those that stand before them.
HEDDLE_DEVICE void SumKept(const RowView& row, SamplePiece* pieces, const Keep& keep,
                           const Memory& memory) {
  const int count = row.pieces();
  for (int piece = WarpIndex(); piece < count; piece += kWarps) {
    SumPrefix(row, piece, keep, pieces + piece);
  }
  SyncThreads();
  const Run run(count);
  Mass mine = 0;
  for (int i = run.begin; i < run.end; ++i) mine += static_cast<Mass>(pieces[i].ties);
  Mass before = BlockScan(mine, memory).before;
  const float tied = ValueOf(keep.prefix.key);
  for (int i = run.begin; i < run.end; ++i) {
    const auto ties = static_cast<Mass>(pieces[i].ties);
    const Mass left = before < keep.prefix.ties ? keep.prefix.ties - before : 0;
    const Mass in = ties < left ? ties : left;
    if (in > 0 && keep.IsLikely(tied)) {
      const Weigh own = {pieces[i].max, keep.weigh.scale};
      pieces[i].sum += static_cast<float>(in) * own(tied);
    }
    pieces[i].ties = static_cast<int32_t>(before);
    before += ties;
  }
  SyncThreads();
}

// Keys, both ends included.
struct Range {
  uint32_t low;
  uint32_t high;
  HEDDLE_DEVICE bool Has(uint32_t key) const { return key >= low && key <= high; }
  // So that the keys in the range fall in bins [0, kBins).
  HEDDLE_DEVICE int Shift() const {
    int shift = 0;
    while ((high - low) >> shift >= kBins) ++shift;
    return shift;
  }
};

// The tokens among which a threshold is searched. `pieces`: skips those whose maximum is below the
// range; nullptr where keys do not order as logits do.
template <typename Key>
struct Source {
  RowView row;
  const SamplePiece* pieces;
  Key key_of;
  HEDDLE_DEVICE bool Skips(int piece, const Range& range) const {
    return pieces != nullptr && KeyOf(pieces[piece].max) < range.low;
  }
};

// Lists the values of the range in memory.list, in no order, as long as there is room. Returns
// their number, which may exceed it, to every thread.
template <typename Key>
HEDDLE_DEVICE int ListRange(const Source<Key>& source, const Range& range, const Memory& memory) {
  if (ThreadX() == 0) memory.count.Set(0, 0);
  SyncThreads();
  for (int piece = WarpIndex(); piece < source.row.pieces(); piece += kWarps) {
    if (source.Skips(piece, range)) continue;
    const Elements e = LoadPiece(source.row, piece);
    int mine = 0;
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) mine += range.Has(source.key_of(e.x[i]));
    const int inclusive = WarpScan(mine);
    int first = 0;
    if (Lane() == 31 && inclusive > 0) first = memory.count.AtomicAdd(0, inclusive);
    int to = Shuffle(first, 31) + inclusive - mine;
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (!range.Has(source.key_of(e.x[i]))) continue;
      if (to < kListed) memory.list.Set(to, e.x[i]);
      ++to;
    }
  }
  SyncThreads();
  const int count = memory.count.Get(0);
  SyncThreads();
  return count;
}

// Adds to a bin; `bin` < 0 adds nothing. All lanes call.
HEDDLE_DEVICE void AddToBins(int bin, Mass mass, const Memory& memory) {
  constexpr int kCrowd = 8;  // lanes in one bin that are worth adding up
  const uint32_t adding = Ballot(bin >= 0);
  if (adding == 0) return;
  const int leader = PopCount((adding & (0u - adding)) - 1);
  const int common = Shuffle(bin, leader);
  if (PopCount(Ballot(bin == common)) >= kCrowd) {
    Mass sum = bin == common ? mass : 0;
    for (int mask = 16; mask > 0; mask >>= 1) sum += ShuffleXor(sum, mask);
    if (Lane() == leader) {
      mass = sum;
    } else if (bin == common) {
      bin = -1;
    }
  }
  if (bin < 0) return;
  const auto low = static_cast<uint32_t>(mass);
  const uint32_t carry = memory.bins.AtomicAdd(bin, low) > ~low ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(mass >> 32) + carry;
  if (high != 0) memory.bins_above.AtomicAdd(bin, high);
}

// Fills the bins with the measure of the range's tokens, `listed` of them in the list or, if
// negative, from the row.
template <typename Key, typename Measure>
HEDDLE_DEVICE void FillBins(const Source<Key>& source, const Range& range, int listed,
                            const Measure& measure, const Memory& memory) {
  for (int b = ThreadX(); b < kBins; b += kThreads) {
    memory.bins.Set(b, 0);
    memory.bins_above.Set(b, 0);
  }
  SyncThreads();
  const int shift = range.Shift();
  auto add = [&](float x, bool there) {
    const uint32_t key = source.key_of(x);
    const Mass mass = there && range.Has(key) ? measure(x) : 0;
    AddToBins(mass > 0 ? static_cast<int>((key - range.low) >> shift) : -1, mass, memory);
  };
  for (int first = 0; first < listed; first += kThreads) {
    const int i = first + ThreadX();
    add(i < listed ? memory.list.Get(i) : 0.0f, i < listed);
  }
  if (listed < 0) {
    for (int piece = WarpIndex(); piece < source.row.pieces(); piece += kWarps) {
      if (source.Skips(piece, range)) continue;
      const Elements e = LoadPiece(source.row, piece);
      HEDDLE_UNROLL
      for (int i = 0; i < kPerLane; ++i) add(e.x[i], true);
    }
  }
  SyncThreads();
}

// The bin, counted from the range's low end, under which `target` is reached from above. To every
// thread; bin < 0 if all bins together do not reach it.
struct Bin {
  int bin;
  Mass above;
};
HEDDLE_DEVICE Bin FindBin(Mass target, Mass above, const Memory& memory) {
  const int b = kBins - 1 - ThreadX();  // from the largest keys down
  const Mass mine =
      b >= 0 ? static_cast<Mass>(memory.bins_above.Get(b)) << 32 | memory.bins.Get(b) : 0;
  const Scan scan = BlockScan(mine, memory);
  const Mass before = above + scan.before;
  if (before < target && target <= before + mine) {
    memory.warps.Set(0, static_cast<Mass>(b));
    memory.warps.Set(1, before);
  }
  SyncThreads();
  Bin found = {-1, above + scan.total};
  if (target <= found.above) {
    found = {static_cast<int>(memory.warps.Get(0)), memory.warps.Get(1)};
  }
  SyncThreads();
  return found;
}

// The greatest key of the range such that the tokens of this and of greater keys reach `target`
// >= 1 in measure; none is above the range. `above` is the measure of those of greater keys alone.
struct Threshold {
  bool found;  // false: the range does not reach it
  uint32_t key;
  Mass above;
};
template <typename Key, typename Measure>
HEDDLE_DEVICE Threshold FindThreshold(const Source<Key>& source, Range range, Mass target,
                                      const Measure& measure, const Memory& memory) {
  Mass above = 0;
  int listed = -1;
  for (bool last = false; !last;) {
    if (listed < 0) {
      const int count = ListRange(source, range, memory);
      if (count <= kListed) listed = count;
    }
    FillBins(source, range, listed, measure, memory);
    const Bin found = FindBin(target, above, memory);
    if (found.bin < 0) return {false, range.low, found.above};
    above = found.above;
    const int shift = range.Shift();
    last = shift == 0;
    range.low += static_cast<uint32_t>(found.bin) << shift;
    const uint32_t end = range.low + ((1u << shift) - 1);
    if (end < range.high) range.high = end;
  }
  return {true, range.low, above};
}

// The measure of a prefix: the number of its tokens, or their mass.
struct Measure {
  bool counts;
  Weigh weigh;
  HEDDLE_DEVICE Mass operator()(float x) const { return counts ? 1 : weigh.MassOf(x); }
};

// The shortest prefix whose measure reaches `target`, searched in the range first; all of the row,
// if nothing less does.
HEDDLE_DEVICE Prefix ShortestPrefix(const RowView& row, const SamplePiece* pieces, Range range,
                                    Mass target, const Measure& measure, const Memory& memory) {
  auto key_of = [](float x) { return KeyOf(x); };
  const Source<decltype(key_of)> source = {row, pieces, key_of};
  const uint32_t lowest = KeyOf(-Infinity());
  Threshold found;
  while (true) {
    found = FindThreshold(source, range, target, measure, memory);
    if (found.found || range.low == lowest) break;
    range.low = lowest;  // rounding put the range's end too high
  }
  if (!found.found) return kWhole;
  const Mass each = measure(ValueOf(found.key));
  const Mass missing = target - found.above;
  return {found.key, each > 0 ? (missing + each - 1) / each : 1};
}

HEDDLE_DEVICE Mass ShareOf(Mass all, float share) {
  const double wanted = static_cast<double>(all) * static_cast<double>(share);
  return wanted > 1 ? static_cast<Mass>(wanted) : 1;
}

// A key that the k-th largest token has at least.
HEDDLE_DEVICE uint32_t FloorOfTopK(const SamplePiece* pieces, int count, int k,
                                   const Memory& memory) {
  if (k > count || count > kListed) return KeyOf(-Infinity());
  float max = -Infinity();
  for (int i = ThreadX(); i < count; i += kThreads) {
    memory.list.Set(i, pieces[i].max);
    max = Max(max, pieces[i].max);
  }
  SyncThreads();
  // Rank by counting: a warp compares one maximum with all of them.
  if (ThreadX() == 0) memory.warps.Set(0, KeyOf(-Infinity()));
  SyncThreads();
  for (int i = WarpIndex(); i < count; i += kWarps) {
    const Ranked mine = {memory.list.Get(i), i};
    int ahead = 0;
    for (int j = Lane(); j < count; j += 32) ahead += Ranked{memory.list.Get(j), j}.Before(mine);
    ahead = Shuffle(WarpScan(ahead), 31);
    if (ahead == k - 1 && Lane() == 0) memory.warps.Set(0, KeyOf(mine.value));
  }
  SyncThreads();
  const auto floor = static_cast<uint32_t>(memory.warps.Get(0));
  SyncThreads();
  return floor;
}

// A key below which the tokens have less than 1 - top_p of `all`, up to rounding.
HEDDLE_DEVICE uint32_t FloorOfTopP(const Weigh& weigh, int vocab, Mass all, float top_p) {
  const float rest = static_cast<float>(all) / kOne * (1 - top_p) / static_cast<float>(vocab);
  const float floor = weigh.max + (Log2(rest) - 1) / weigh.scale;
  return KeyOf(floor < weigh.max ? floor : weigh.max);
}

// Narrows what is kept by top_k or top_p (`counts` or not).
HEDDLE_DEVICE Prefix CutPrefix(const RowView& row, const SampleRow& how, bool counts,
                               const SamplePiece* pieces, const Keep& keep, const Memory& memory) {
  const Weigh& weigh = keep.weigh;
  Range range = {keep.prefix.key, KeyOf(weigh.max)};
  auto target = static_cast<Mass>(how.top_k);
  if (counts) {
    range.low = FloorOfTopK(pieces, row.pieces(), how.top_k, memory);
  } else {
    const Mass all = ScanMasses(pieces, row.pieces(), weigh, memory).total;
    target = ShareOf(all, how.top_p);
    if (keep.prefix.key == kWhole.key) range.low = FloorOfTopP(weigh, row.vocab, all, how.top_p);
  }
  const Prefix cut = ShortestPrefix(row, pieces, range, target, {counts, weigh}, memory);
  // Never longer than what was left: the same key may be cut earlier by that.
  const bool longer =
      cut.key < keep.prefix.key || (cut.key == keep.prefix.key && cut.ties > keep.prefix.ties);
  return longer ? keep.prefix : cut;
}

// Surprise of a token in bits, up to a constant: minus the logarithm of its weight.
HEDDLE_DEVICE float Surprise(const Weigh& weigh, float x) {
  return x == weigh.max ? 0.0f : (weigh.max - x) * weigh.scale;
}

// The mean surprise of a row's tokens, and their mass.
struct Typical {
  float mean;
  Mass all;
};
HEDDLE_DEVICE Typical MeanSurprise(const RowView& row, const Weigh& weigh, const Memory& memory) {
  Mass mine = 0, my_surprise = 0;
  for (int piece = WarpIndex(); piece < row.pieces(); piece += kWarps) {
    const Elements e = LoadPiece(row, piece);
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const float weight = weigh(e.x[i]);
      if (weight == 0) continue;
      mine += static_cast<Mass>(weight * kOne);
      my_surprise += static_cast<Mass>(weight * Surprise(weigh, e.x[i]) * kOne);
    }
  }
  const Mass all = BlockScan(mine, memory).total;
  const Mass surprise = BlockScan(my_surprise, memory).total;
  return {static_cast<float>(static_cast<double>(surprise) / static_cast<double>(all)), all};
}

// Bans what is not kept, then what typical_p takes from the rest, into `edited` [vocab], and
// summarises that. Surprise minus entropy is the surprise minus its mean, whatever constant it is
// known up to.
HEDDLE_DEVICE void KeepTypical(const RowView& row, float typical_p, const Keep& keep, float* edited,
                               SamplePiece* pieces, const Memory& memory) {
  const int count = row.pieces();
  const Weigh& weigh = keep.weigh;
  for (int piece = WarpIndex(); piece < count; piece += kWarps) {
    Elements e = LoadPiece(row, piece);
    const uint32_t kept = KeptOf(e, keep, pieces[piece].ties);
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if ((kept >> i & 1u) == 0) e.x[i] = -Infinity();
    }
    StorePiece(e, piece, row.vocab, edited);
  }
  SyncThreads();
  const RowView left = {edited, nullptr, row.vocab};
  const Typical typical = MeanSurprise(left, weigh, memory);
  auto nearness = [&](float x) {
    const float distance = Surprise(weigh, x) - typical.mean;
    return KeyOf(distance > 0 ? -distance : distance + 0.0f);
  };
  const Source<decltype(nearness)> source = {left, nullptr, nearness};
  const Range range = {KeyOf(-Infinity()) + 1, KeyOf(0.0f)};
  auto measure = [&](float x) { return weigh.MassOf(x); };
  const Threshold least =
      FindThreshold(source, range, ShareOf(typical.all, typical_p), measure, memory);
  for (int piece = WarpIndex(); piece < count; piece += kWarps) {
    Elements e = LoadPiece(left, piece);
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (nearness(e.x[i]) < least.key) e.x[i] = -Infinity();
    }
    StorePiece(e, piece, row.vocab, edited);
  }
  SyncThreads();
  SummariseAll(left, 0, count, weigh.scale, /*sums=*/true, pieces);
  SyncThreads();
}

// The prefix of the logits that are at least the largest, `max`, minus n standard deviations of the
// finite ones. Each thread adds up its share, and the shares are added up in order.
HEDDLE_DEVICE Prefix TopSigma(const RowView& row, float max, float n, const Memory& memory) {
  float mean = 0, variance = 0;
  for (int round = 0; round < 2; ++round) {  // sums first, then squares of distances from the mean
    float sum = 0, count = 0;
    for (int piece = WarpIndex(); piece < row.pieces(); piece += kWarps) {
      const Elements e = LoadPiece(row, piece);
      HEDDLE_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        if (e.x[i] == -Infinity() || e.x[i] == Infinity()) continue;
        const float below = max - e.x[i] - mean;
        sum += round == 0 ? below : below * below;
        ++count;
      }
    }
    count = BlockSum(count, memory.list);
    SyncThreads();
    sum = BlockSum(sum, memory.list);
    SyncThreads();
    (round == 0 ? mean : variance) = sum / Max(count, 1.0f);
  }
  // Where the largest is infinite there is no other to keep.
  const float least = max == Infinity() ? max : max - n / Rsqrt(variance);
  return {KeyOf(least) - 1, 0};
}

// Applies top_n_sigma, top_k, top_p and min_p one after the other to `keep`, which comes with all
// tokens, and to the pieces' sums.
HEDDLE_DEVICE void FilterPrefix(const RowView& row, const SampleRow& how, SamplePiece* pieces,
                                Keep* keep, const Memory& memory) {
  enum Filter { kTopNSigma, kTopK, kTopP, kMinP, kFilters };
  HEDDLE_UNROLL_BY(1)  // the code of one
  for (int filter = 0; filter < kFilters; ++filter) {
    if (filter == kTopNSigma && how.top_n_sigma <= 0) continue;
    if (filter == kTopK && (how.top_k <= 0 || how.top_k >= row.vocab)) continue;
    if (filter == kTopP && how.top_p >= 1) continue;
    if (filter == kMinP && how.min_p <= 0) continue;
    if (filter == kTopNSigma) {
      keep->prefix = TopSigma(row, keep->weigh.max, how.top_n_sigma, memory);
    } else if (filter == kMinP) {
      keep->min_p = how.min_p;
    } else {
      keep->prefix = CutPrefix(row, how, filter == kTopK, pieces, *keep, memory);
    }
    SumKept(row, pieces, *keep, memory);
  }
}

// Takes from `keep`, and from the pieces' sums, what is likelier than the least likely token of
// those that have at least `threshold` of the mass.
HEDDLE_DEVICE void ExcludeTop(const RowView& row, float threshold, SamplePiece* pieces, Keep* keep,
                              const Memory& memory) {
  const Weigh& weigh = keep->weigh;
  const Mass all = ScanMasses(pieces, row.pieces(), weigh, memory).total;
  const auto wanted =
      static_cast<float>(static_cast<double>(all) * static_cast<double>(threshold)) / kOne;
  uint32_t least = keep->highest;
  for (int piece = WarpIndex(); piece < row.pieces(); piece += kWarps) {
    const Elements e = LoadPiece(row, piece);
    const uint32_t kept = KeptOf(e, *keep, pieces[piece].ties);
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const float weight = weigh(e.x[i]);
      const uint32_t key = KeyOf(e.x[i]);
      if ((kept >> i & 1u) != 0 && weight > 0 && weight >= wanted && key < least) least = key;
    }
  }
  least = WarpMinimum(least);
  if (Lane() == 0) memory.warps.Set(WarpIndex(), least);
  SyncThreads();
  HEDDLE_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const auto other = static_cast<uint32_t>(memory.warps.Get(w));
    if (other < least) least = other;
  }
  SyncThreads();
  keep->highest = least;
  SumKept(row, pieces, *keep, memory);
}

// Applies all filters to `keep`, which comes with all tokens, and to the pieces' sums. Returns what
// the draw is from: `row`, or the row's scratch.
HEDDLE_DEVICE RowView FilterRow(const RowView& row, const SampleRow& how, SamplePiece* pieces,
                                Keep* keep, const Memory& memory) {
  FilterPrefix(row, how, pieces, keep, memory);
  RowView left = row;
  if (how.typical_p < 1) {
    KeepTypical(row, how.typical_p, *keep, how.edited, pieces, memory);
    keep->prefix = kWhole;
    keep->min_p = 0;
    left = {how.edited, nullptr, row.vocab};
  }
  if (how.xtc_probability > 0 && how.xtc_threshold <= 0.5f &&
      Uniform(how.seed, how.counter, /*stream=*/1) <= how.xtc_probability) {
    ExcludeTop(left, how.xtc_threshold, pieces, keep, memory);
  }
  return left;
}

}  // namespace heddle::kernels::cuda::sample
