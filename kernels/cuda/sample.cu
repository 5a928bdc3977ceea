// Drawing tokens on the device, a block per row, without sorting.
//
// Every filter keeps a prefix of a ranking (see kernels/sample.h), so what is needed of the ranking
// is one threshold: found by descending through the bits of what is ranked by, 8 at a time, with a
// histogram of counts (top_k) or probability mass (top_p, typical_p). Probabilities are summed as
// integers in units of 2^-40: integer addition does not care for order, so the same row gives the
// same token whatever the order in which threads arrive. Passes over the row: 3 without filters, 4
// more and one for each of top_k and top_p, 9 more for typical_p.
#include "kernels/cuda/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 256;
constexpr float kOne = 1099511627776.0f;  // 2^40; a row of 2^23 tokens still fits 64 bits

using Mass = unsigned long long;  // in units of 1 / kOne; the type that atomicAdd wants

struct Memory {
  Shared<Mass> bins;     // [kBins]
  Shared<Mass> warps;    // [kWarps + 1] for scans and broadcasts
  Shared<float> floats;  // [kWarps]
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : bins(arena.Take<Mass>(kBins)),
        warps(arena.Take<Mass>(kWarps + 1)),
        floats(arena.Take<float>(kWarps)) {}
};

constexpr int kSharedBytes =
    SharedBytesFor<Mass>(kBins) + SharedBytesFor<Mass>(kWarps + 1) + SharedBytesFor<float>(kWarps);

// Unsigned integers that order as the floats do.
HEDDLE_DEVICE uint32_t KeyOf(float x) {
  uint32_t bits = FloatToBits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
HEDDLE_DEVICE float ValueOf(uint32_t key) {
  return BitsToFloat(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// NaN counts as -infinity; -0 becomes 0, since they tie.
HEDDLE_DEVICE float Clean(float x) { return IsNan(x) ? -Infinity() : x + 0.0f; }

// Exclusive sums over the threads in order; the total to everybody.
struct Scan {
  Mass before;
  Mass total;
};
HEDDLE_DEVICE Scan BlockScan(Mass mine, const Memory& memory) {
  Mass inclusive = mine;
  for (int delta = 1; delta < 32; delta <<= 1) {
    Mass other = ShuffleUp(inclusive, delta);
    if (Lane() >= delta) inclusive += other;
  }
  if (Lane() == 31) memory.warps.Set(WarpIndex(), inclusive);
  SyncThreads();
  Mass before = inclusive - mine, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    Mass sum = memory.warps.Get(w);
    if (w < WarpIndex()) before += sum;
    total += sum;
  }
  SyncThreads();
  return {before, total};
}

// Larger value first, lower id first among equals; id < 0 is nothing.
struct Ranked {
  float value;
  int id;
  HEDDLE_DEVICE bool Before(const Ranked& other) const {
    if (id < 0 || other.id < 0) return other.id < 0 && id >= 0;
    return value > other.value || (value == other.value && id < other.id);
  }
};

// The best element that ranks after `previous` (all, if previous.id < 0), to every thread.
HEDDLE_DEVICE Ranked BestAfter(const float* row, int vocab, Ranked previous, const Memory& memory) {
  Ranked best = {-Infinity(), -1};
  for (int i = ThreadX(); i < vocab; i += kThreads) {
    Ranked candidate = {Clean(row[i]), i};
    bool open = previous.id < 0 || previous.Before(candidate);
    if (open && candidate.Before(best)) best = candidate;
  }
  auto join = [&best](float value, int id) {
    Ranked other = {value, id};
    if (other.Before(best)) best = other;
  };
  for (int mask = 16; mask > 0; mask >>= 1) {
    float value = ShuffleXor(best.value, mask);
    int id = ShuffleXor(best.id, mask);
    join(value, id);
  }
  if (Lane() == 0) {
    memory.warps.Set(WarpIndex(), static_cast<Mass>(FloatToBits(best.value)) << 32 |
                                      static_cast<uint32_t>(best.id));
  }
  SyncThreads();
  for (int w = 0; w < kWarps; ++w) {
    Mass packed = memory.warps.Get(w);
    join(BitsToFloat(static_cast<uint32_t>(packed >> 32)),
         static_cast<int>(static_cast<uint32_t>(packed)));
  }
  SyncThreads();
  return best;
}

// Probability relative to the most likely token, in units of 1 / kOne.
struct Weigh {
  float max;
  float inverse_temperature;
  HEDDLE_DEVICE float Float(float x) const {
    return x == max ? 1.0f : Exp((x - max) * inverse_temperature);
  }
  HEDDLE_DEVICE Mass operator()(float x) const { return static_cast<Mass>(Float(x) * kOne); }
};

// The edited row: edits, mask, NaN.
HEDDLE_DEVICE void EditRow(const float* logits, int vocab, const SampleRow& row, float* edited) {
  auto allowed = [&row](int i) {
    return row.allowed == nullptr || ((row.allowed[i / 32] >> (i % 32)) & 1u) != 0;
  };
  for (int i = ThreadX(); i < vocab; i += kThreads) {
    edited[i] = allowed(i) ? Clean(logits[i]) : -Infinity();
  }
  SyncThreads();
  for (int e = ThreadX(); e < row.num_edits; e += kThreads) {
    const LogitEdit edit = row.edits[e];
    float x = logits[edit.token] + edit.bias;
    x = (x > 0 ? x / edit.scale_div : x * edit.scale_div) + edit.add;
    edited[edit.token] = allowed(edit.token) ? Clean(x) : -Infinity();
  }
  SyncThreads();
}

// What is kept of the ranking: all above `key`, and the first `ties` (by id) of those equal to it.
struct Prefix {
  uint32_t key;
  Mass ties;
};
constexpr Prefix kWhole = {0, 0};  // no float has key 0

// Sum of the weights of the prefix, to every thread.
HEDDLE_DEVICE Mass MassOf(const float* edited, int vocab, const Weigh& weigh, Prefix prefix,
                          const Memory& memory) {
  Mass mine = 0;
  for (int i = ThreadX(); i < vocab; i += kThreads) {
    if (KeyOf(edited[i]) > prefix.key) mine += weigh(edited[i]);
  }
  return BlockScan(mine, memory).total + prefix.ties * weigh(ValueOf(prefix.key));
}

// Finds the digit under which `target` is reached, counting from the largest: one thread's work,
// 256 steps once per pass. Returns digit and what lies above it.
struct Digit {
  uint32_t digit;
  Mass above;
};
HEDDLE_DEVICE Digit FindDigit(Mass target, Mass above, const Memory& memory) {
  SyncThreads();  // the histogram is complete
  if (ThreadX() == 0) {
    int digit = kBins - 1;
    while (digit > 0 && above + memory.bins.Get(digit) < target) above += memory.bins.Get(digit--);
    memory.warps.Set(0, static_cast<Mass>(digit));
    memory.warps.Set(1, above);
  }
  SyncThreads();
  const Digit found = {static_cast<uint32_t>(memory.warps.Get(0)), memory.warps.Get(1)};
  SyncThreads();
  return found;
}

// The greatest key such that the tokens of this and of greater keys reach `target` >= 1 in measure:
// their number, or their mass. `above` is the measure of those of greater keys alone.
// REQUIRES: the whole row's measure reaches it.
struct Threshold {
  uint32_t key;
  Mass above;
};
template <typename Key, typename Measure>
HEDDLE_DEVICE Threshold FindThreshold(const float* edited, int vocab, Mass target,
                                      const Key& key_of, const Measure& measure,
                                      const Memory& memory) {
  uint32_t key = 0;
  Mass above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int b = ThreadX(); b < kBins; b += kThreads) memory.bins.Set(b, 0);
    SyncThreads();
    for (int i = ThreadX(); i < vocab; i += kThreads) {
      const uint32_t k = key_of(edited[i]);
      // Same digits as the threshold so far?
      if (shift == 24 || k >> (shift + 8) == key >> (shift + 8)) {
        memory.bins.AtomicAdd(static_cast<int>(k >> shift & 255u), measure(edited[i]));
      }
    }
    const Digit found = FindDigit(target, above, memory);
    key |= found.digit << shift;
    above = found.above;
  }
  return {key, above};
}

// The shortest prefix whose measure reaches `target`, as above.
template <typename Measure>
HEDDLE_DEVICE Prefix ShortestPrefix(const float* edited, int vocab, Mass target,
                                    const Measure& measure, const Memory& memory) {
  const Threshold found = FindThreshold(edited, vocab, target, KeyOf, measure, memory);
  const Mass each = measure(ValueOf(found.key));
  const Mass missing = target > found.above ? target - found.above : 1;
  return {found.key, each > 0 ? (missing + each - 1) / each : 1};
}

HEDDLE_DEVICE Mass ShareOf(Mass all, float share) {
  const double wanted = static_cast<double>(all) * static_cast<double>(share);
  return wanted > 1 ? static_cast<Mass>(wanted) : 1;
}

// After top_k and top_p. All tokens, if neither is on.
HEDDLE_DEVICE Prefix FilterRow(const float* edited, int vocab, const SampleRow& row,
                               const Weigh& weigh, const Memory& memory) {
  Prefix prefix = kWhole;
  if (row.top_k > 0 && row.top_k < vocab) {
    prefix = ShortestPrefix(
        edited, vocab, static_cast<Mass>(row.top_k), [](float) { return Mass{1}; }, memory);
  }
  if (row.top_p < 1) {
    const Mass all = MassOf(edited, vocab, weigh, prefix, memory);
    const Prefix top_p = ShortestPrefix(edited, vocab, ShareOf(all, row.top_p), weigh, memory);
    // Never longer than what top_k left: the same key may be cut earlier by it.
    const bool same = top_p.key == prefix.key;
    prefix = {top_p.key, same && prefix.ties < top_p.ties ? prefix.ties : top_p.ties};
  }
  return prefix;
}

// The neighbouring ids [begin, end) that are this thread's, and how many tokens at the prefix's key
// stand before them.
struct Run {
  int begin;
  int end;
  Mass ties_before;
};
HEDDLE_DEVICE Run RunOfThread(const float* edited, int vocab, Prefix prefix, const Memory& memory) {
  const int run = (vocab + kThreads - 1) / kThreads;
  const int begin = ThreadX() * run;
  const int end = begin + run < vocab ? begin + run : vocab;
  Mass ties = 0;
  for (int i = begin; i < end; ++i) ties += KeyOf(edited[i]) == prefix.key;
  return {begin, end, BlockScan(ties, memory).before};
}

// Calls fn(id, weight, kept) for each token of the run until it returns false. Kept are those of
// the prefix that min_p leaves too.
template <typename Fn>
HEDDLE_DEVICE void ForRun(const float* edited, const Run& run, const Weigh& weigh, Prefix prefix,
                          float min_p, const Fn& fn) {
  Mass tie = run.ties_before;
  for (int i = run.begin; i < run.end; ++i) {
    const uint32_t key = KeyOf(edited[i]);
    const bool in_prefix = key > prefix.key || (key == prefix.key && tie++ < prefix.ties);
    const float weight = weigh.Float(edited[i]);
    const bool kept = in_prefix && (weight >= min_p || weight >= 1.0f);
    if (!fn(i, static_cast<Mass>(weight * kOne), kept)) return;
  }
}

// Surprise of a token, up to a constant: minus the logarithm of its weight.
HEDDLE_DEVICE float Surprise(const Weigh& weigh, float x) {
  return x == weigh.max ? 0.0f : (weigh.max - x) * weigh.inverse_temperature;
}

// Bans what typical_p takes from the tokens that have a weight. Surprise minus entropy is the
// surprise minus its mean, whatever constant it is known up to.
HEDDLE_DEVICE void KeepTypical(float* edited, int vocab, const Weigh& weigh, float typical_p,
                               const Memory& memory) {
  Mass mine = 0, my_surprise = 0;
  for (int i = ThreadX(); i < vocab; i += kThreads) {
    const float weight = weigh.Float(edited[i]);
    if (weight == 0) continue;
    mine += static_cast<Mass>(weight * kOne);
    my_surprise += static_cast<Mass>(weight * Surprise(weigh, edited[i]) * kOne);
  }
  const Mass all = BlockScan(mine, memory).total;
  const Mass surprise = BlockScan(my_surprise, memory).total;
  const auto mean = static_cast<float>(static_cast<double>(surprise) / static_cast<double>(all));
  auto nearness = [&](float x) {
    const float distance = Surprise(weigh, x) - mean;
    return KeyOf(distance > 0 ? -distance : distance + 0.0f);
  };
  const uint32_t least =
      FindThreshold(edited, vocab, ShareOf(all, typical_p), nearness, weigh, memory).key;
  for (int i = ThreadX(); i < vocab; i += kThreads) {
    if (nearness(edited[i]) < least) edited[i] = -Infinity();
  }
  SyncThreads();
}

// Inverts the cumulative distribution of the kept tokens in order of id.
HEDDLE_DEVICE void DrawKept(const float* edited, int vocab, const Weigh& weigh, Prefix prefix,
                            float min_p, float uniform, const Memory& memory, int32_t* token) {
  const Run run = RunOfThread(edited, vocab, prefix, memory);
  Mass mine = 0;
  ForRun(edited, run, weigh, prefix, min_p, [&](int, Mass weight, bool kept) {
    if (kept) mine += weight;
    return true;
  });
  const Scan scan = BlockScan(mine, memory);
  const Mass target = static_cast<Mass>(static_cast<double>(scan.total) * uniform);
  if (target < scan.before || target >= scan.before + mine) return;
  Mass sum = scan.before;
  ForRun(edited, run, weigh, prefix, min_p, [&](int id, Mass weight, bool kept) {
    if (kept) sum += weight;
    if (sum <= target) return true;
    *token = id;
    return false;
  });
}

// Philox4x32-10, as kernels/philox.cc; the first word of the block.
HEDDLE_DEVICE float Uniform(uint64_t seed, uint64_t counter) {
  uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t c0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0];
    const uint32_t c2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1];
    c[0] = c0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = c2;
    c[3] = static_cast<uint32_t>(p0);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return (static_cast<float>(c[0] >> 9) + 0.5f) * 1.1920929e-7f;  // 2^-23
}

// Writes the drawn token; thread-uniform decisions throughout.
HEDDLE_DEVICE void DrawRow(const SampleParams& p, const SampleRow& row, const float* logits,
                           float* edited, int32_t* token, const Memory& memory) {
  EditRow(logits, p.vocab, row, edited);
  const Ranked best = BestAfter(edited, p.vocab, {0, -1}, memory);
  const bool banned = best.value == -Infinity();
  if (banned || row.temperature == 0) {
    if (ThreadX() == 0) *token = banned ? -1 : best.id;
    return;
  }
  const Weigh weigh = {best.value, 1.0f / row.temperature};
  Prefix prefix = FilterRow(edited, p.vocab, row, weigh, memory);
  float min_p = row.min_p;
  if (row.typical_p < 1) {
    const Run run = RunOfThread(edited, p.vocab, prefix, memory);
    ForRun(edited, run, weigh, prefix, min_p, [&](int id, Mass, bool kept) {
      if (!kept) edited[id] = -Infinity();
      return true;
    });
    SyncThreads();
    KeepTypical(edited, p.vocab, weigh, row.typical_p, memory);
    prefix = kWhole;
    min_p = 0;
  }
  DrawKept(edited, p.vocab, weigh, prefix, min_p, Uniform(row.seed, row.counter), memory, token);
}

// Logprobs of the drawn token and of the likeliest, from the unedited logits.
HEDDLE_DEVICE void ReportRow(const SampleParams& p, const SampleRow& row, int n,
                             const float* logits, const Memory& memory) {
  Ranked best = BestAfter(logits, p.vocab, {0, -1}, memory);
  const Weigh weigh = {best.value, 1.0f};
  float mine = 0;
  for (int i = ThreadX(); i < p.vocab; i += kThreads) mine += weigh.Float(Clean(logits[i]));
  const float log_sum = Log(BlockSum(mine, memory.floats));
  auto logprob = [&](float x) { return (x == weigh.max ? 0.0f : x - weigh.max) - log_sum; };
  if (ThreadX() == 0) {
    const int token = p.tokens[n];
    p.logprobs[n] = token >= 0 ? logprob(Clean(logits[token])) : -Infinity();
  }
  for (int j = 0; j < row.num_top; ++j) {
    const int64_t to = static_cast<int64_t>(n) * p.max_top + j;
    if (ThreadX() == 0) {
      p.top_tokens[to] = best.id;
      p.top_logprobs[to] = best.id < 0 ? -Infinity() : logprob(best.value);
    }
    if (best.id >= 0 && j + 1 < row.num_top) best = BestAfter(logits, p.vocab, best, memory);
  }
}

HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) SampleKernel(HEDDLE_PARAMS(SampleParams, p)) {
  StartInTurn();
  const Memory memory{SharedArena()};
  const int n = p.first + BlockX();
  const SampleRow row = p.rows[n];
  const float* logits = p.logits + row.logit_row * p.stride;
  if (row.forced_token >= 0) {
    if (ThreadX() == 0) p.tokens[n] = row.forced_token;
  } else {
    DrawRow(p, row, logits, p.edited + static_cast<int64_t>(BlockX()) * p.vocab, p.tokens + n,
            memory);
  }
  SyncThreads();  // the token is written
  if (row.num_top >= 0) ReportRow(p, row, n, logits, memory);
}

}  // namespace

Error LaunchSample(const SampleParams& params, int32_t count, Stream stream) {
  const LaunchShape shape = {.grid_x = count, .threads = kThreads, .shared_bytes = kSharedBytes};
  return Launch(SampleKernel, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
