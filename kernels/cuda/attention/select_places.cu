// The places with a row's best scores, ascending (kernels/selection.h): one block for a row.
//
// Scores become numbers in their order, which shared memory keeps, for contexts of up to 49,152
// places all of them; what is behind is read again in each pass. The last score to be chosen is
// found digit by digit, from counts of the digits of those that begin like it: three passes. Two
// more count what each warp's part of the context has, and write it. Nothing depends on the order
// in which threads count. A pass over 32,768 places in shared memory takes 1,000 clocks of its
// bandwidth; of those in the L2, 64 KiB are in flight, some 90 bytes a clock.
#include "kernels/cuda/attention/select_rows.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kFewThreads = 256, kManyThreads = 1024;
constexpr int kFewKeys = 4096;  // of contexts for which a block has few threads
constexpr int kMostKept = 48 << 10;
constexpr int kAtOnce = 4;  // loads of a thread that are in flight together

// A number in the order of scores: NaN below all others, and both zeros equal.
HEDDLE_DEVICE uint32_t OrderOf(float score) {
  if (IsNan(score)) return 0;
  const uint32_t bits = score == 0 ? 0 : FloatToBits(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Memory {
  Shared<int32_t> counts;    // [kDigits]
  Shared<int32_t> of_warps;  // [2, warps]
  Shared<int32_t> digit;     // [2] that was found, and how many to choose of those with it
  Shared<uint32_t> orders;   // [kept] of the first places
  HEDDLE_DEVICE explicit Memory(SharedArena arena, int warps, int kept)
      : counts(arena.Take<int32_t>(kDigits)),
        of_warps(arena.Take<int32_t>(2 * warps)),
        digit(arena.Take<int32_t>(2)),
        orders(arena.Take<uint32_t>(kept)) {}
  static int SharedBytes(int threads, int kept) {
    return SharedBytesFor<int32_t>(kDigits) + SharedBytesFor<int32_t>(2 * (threads / 32)) +
           SharedBytesFor<int32_t>(2) + SharedBytesFor<uint32_t>(kept);
  }
};

// A row's scores in their order.
struct Row {
  const float* scores;
  RowSight sight;
  int kept;
  Memory memory;

  // The first places, for all threads behind the next barrier.
  HEDDLE_DEVICE void Keep() const {
    ForGroups(0, kept < sight.end ? kept : sight.end, [this](int place, const Vec16& scored) {
      Vec16 orders;
      HEDDLE_UNROLL
      for (int j = 0; j < 4; ++j) orders.word[j] = OrderOf(BitsToFloat(scored.word[j]));
      memory.orders.SetAs(place, orders);
    });
  }
  // Calls visit(order) for all places that the row sees, each in one thread.
  template <typename Visit>
  HEDDLE_DEVICE void ForAll(const Visit& visit) const {
    for (int place = ThreadX(); place < kept && place < sight.end; place += ThreadCount()) {
      if (sight.Sees(place)) visit(memory.orders.Get(place));
    }
    ForGroups(kept, sight.end, [&](int place, const Vec16& scored) {
      HEDDLE_UNROLL
      for (int j = 0; j < 4; ++j) {
        if (sight.Sees(place + j)) visit(OrderOf(BitsToFloat(scored.word[j])));
      }
    });
  }
  // Calls visit(place, is_above, is_equal) with whole warps for the places of a warp's part.
  template <typename Visit>
  HEDDLE_DEVICE void ForPart(uint32_t least, const Visit& visit) const {
    const int warps = ThreadCount() / 32;
    const int part = (sight.end + 32 * warps - 1) / (32 * warps) * 32;
    const int begin = WarpIndex() * part;
    const int end = begin + part < sight.end ? begin + part : sight.end;
    for (int first = begin; first < end; first += 32 * kAtOnce) {
      uint32_t order[kAtOnce];
      HEDDLE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int place = first + 32 * i + Lane();
        order[i] = place < end ? OrderAt(place) : 0;
      }
      HEDDLE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int place = first + 32 * i + Lane();
        if (first + 32 * i >= end) break;
        const bool sees = place < end && sight.Sees(place);
        visit(place, sees && order[i] > least, sees && order[i] == least);
      }
    }
  }

 private:
  HEDDLE_DEVICE uint32_t OrderAt(int place) const {
    return place < kept ? memory.orders.Get(place) : OrderOf(scores[place]);
  }
  // Calls visit(place, scores) for groups of four places from `begin` on, multiples of 4: the last
  // one may end behind `end`, within the row's stride.
  template <typename Visit>
  HEDDLE_DEVICE void ForGroups(int begin, int end, const Visit& visit) const {
    for (int base = begin; base < end; base += 4 * kAtOnce * ThreadCount()) {
      Vec16 group[kAtOnce];
      HEDDLE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int place = base + 4 * (i * ThreadCount() + ThreadX());
        group[i] = Vec16{};
        if (place < end) group[i] = *reinterpret_cast<const Vec16*>(scores + place);
      }
      HEDDLE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int place = base + 4 * (i * ThreadCount() + ThreadX());
        if (place < end) visit(place, group[i]);
      }
    }
  }
};

// Sums over the threads before this one, in a warp.
HEDDLE_DEVICE int SumBefore(int value) {
  int sum = value;
  for (int delta = 1; delta < 32; delta *= 2) {
    const int more = ShuffleUp(sum, delta);
    if (Lane() >= delta) sum += more;
  }
  return sum - value;
}

// Finds the highest digit such that there are `left` with it or a higher one, and how many of those
// with it are among the first `left`. Every thread has as many digits, the first the highest ones.
HEDDLE_DEVICE void FindDigit(const Memory& memory, int left) {
  const int share = kDigits / ThreadCount();
  const int top = kDigits - 1 - ThreadX() * share;
  int own = 0;
  for (int i = 0; i < share; ++i) own += memory.counts.Get(top - i);
  int above = SumBefore(own);
  if (Lane() == 31) memory.of_warps.Set(WarpIndex(), above + own);
  SyncThreads();
  for (int w = 0; w < WarpIndex(); ++w) above += memory.of_warps.Get(w);
  if (above >= left || above + own < left) return;
  int digit = top;
  for (; above + memory.counts.Get(digit) < left; --digit) above += memory.counts.Get(digit);
  memory.digit.Set(0, digit);
  memory.digit.Set(1, left - above);
}

// The number of the last score that is chosen, and how many of those that are equal to it.
struct Least {
  uint32_t order;
  int ties;
};
HEDDLE_DEVICE Least FindLeast(const Row& row, int count) {
  const Memory& memory = row.memory;
  Least least = {0, count};
  int known = 32;  // bits that are not
  for (int step = 0; step < 3; ++step) {
    const int bits = known < kDigitBits ? known : kDigitBits;
    const int shift = known - bits;
    for (int i = ThreadX(); i < kDigits; i += ThreadCount()) memory.counts.Set(i, 0);
    SyncThreads();
    row.ForAll([&](uint32_t order) {
      if (known < 32 && order >> known != least.order) return;
      memory.counts.AtomicAdd(static_cast<int>(order >> shift) & ((1 << bits) - 1), 1);
    });
    SyncThreads();
    FindDigit(memory, least.ties);
    SyncThreads();
    least.order = least.order << bits | static_cast<uint32_t>(memory.digit.Get(0));
    least.ties = memory.digit.Get(1);
    known = shift;
  }
  return least;
}

HEDDLE_KERNEL HEDDLE_BOUNDS(kManyThreads, 1) ChoosePlacesKernel(HEDDLE_PARAMS(SelectParams, p)) {
  AllowNext();
  const int top_k = p.args.top_k;
  const RowSight sight = SightOf(p.batch, p.batch_row + BlockX(), top_k);
  WaitForPrevious();
  int32_t* out = p.args.out + (p.row + BlockX()) * ChosenPlaces{nullptr, top_k}.stride();
  if (!sight.chooses) {
    if (ThreadX() == 0) *out = 0;
    return;
  }
  const Row row = {p.scores + BlockX() * p.stride, sight, p.kept,
                   Memory(SharedArena(), ThreadCount() / 32, p.kept)};
  const Memory& memory = row.memory;
  row.Keep();
  const int seen = sight.whole + BitsOf(sight.tree);
  const int count = seen < top_k ? seen : top_k;
  const Least least = FindLeast(row, count);
  int above = 0, equal = 0;
  row.ForPart(least.order, [&](int, bool is_above, bool is_equal) {
    above += PopCount(Ballot(is_above));
    equal += PopCount(Ballot(is_equal));
  });
  if (Lane() == 0) {
    memory.of_warps.Set(2 * WarpIndex(), above);
    memory.of_warps.Set(2 * WarpIndex() + 1, equal);
  }
  SyncThreads();
  above = equal = 0;  // before this warp's part
  for (int w = 0; w < WarpIndex(); ++w) {
    above += memory.of_warps.Get(2 * w);
    equal += memory.of_warps.Get(2 * w + 1);
  }
  int at = above + (equal < least.ties ? equal : least.ties);
  const uint32_t before = (1u << Lane()) - 1;
  row.ForPart(least.order, [&](int place, bool is_above, bool is_equal) {
    const uint32_t ties = Ballot(is_equal);
    const bool is_chosen = is_above || (is_equal && equal + PopCount(ties & before) < least.ties);
    const uint32_t chosen = Ballot(is_chosen);
    if (is_chosen) out[1 + at + PopCount(chosen & before)] = place;
    equal += PopCount(ties);
    at += PopCount(chosen);
  });
  if (ThreadX() == 0) *out = count;
}

}  // namespace

Error LaunchChoosePlaces(const SelectParams& params, int32_t max_shared_bytes, Stream stream) {
  SelectParams p = params;
  const int threads = p.context <= kFewKeys ? kFewThreads : kManyThreads;
  const int room = (max_shared_bytes - Memory::SharedBytes(threads, 0)) / 128 * 32;
  const int most = room < kMostKept ? room : kMostKept;
  p.kept = p.stride < most ? static_cast<int>(p.stride) : most;
  const LaunchShape shape = {
      .grid_x = p.n_rows, .threads = threads, .shared_bytes = Memory::SharedBytes(threads, p.kept)};
  return Launch(ChoosePlacesKernel, shape, stream, p);
}

}  // namespace heddle::kernels::cuda
