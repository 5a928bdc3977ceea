#include "kernels/cpu/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/span_positions.h"
#include "kernels/kv_element.h"
#include "kernels/selection_scores.h"

namespace heddle::kernels::cpu {
namespace {

// Places of a context that a task scores: so many that the rows of a tile read the keys, turned
// once for all, from the second-level cache.
constexpr int32_t kScoredChunk = kScoredPlaces;
constexpr int32_t kTileRows = 16;
// Approximate nanoseconds of a multiply-add, and of finding the best of one score, to decide how
// many threads to wake.
constexpr double kNsPerMac = 0.05;
constexpr double kNsPerChoice = 2;

// Digits of a score's key, of which the best ones are found.
constexpr int kDigitBits = 11;
constexpr int32_t kDigits = 1 << kDigitBits;
constexpr int kFirstShift = 32 - kDigitBits;
constexpr int kSecondShift = kFirstShift - kDigitBits;
static_assert(kSecondShift <= kDigitBits);

// A number that is in the order of the scores: NaN below all others, and both zeros equal.
uint32_t KeyOf(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return std::isnan(score) ? 0 : key;
}

// The largest digit such that at least `*left` keys have it or a larger one; those that have a
// larger one are taken from `*left`.
uint32_t LastDigit(const int32_t* counts, int32_t* left) {
  int32_t digit = kDigits - 1;
  for (; counts[digit] < *left; --digit) *left -= counts[digit];
  return static_cast<uint32_t>(digit);
}

// Moves those of n keys to the front that have the value behind a shift; returns how many. Without
// branches, because which ones they are cannot be predicted.
int32_t KeepKeys(uint32_t* keys, int32_t n, int shift, uint32_t value) {
  int32_t kept = 0;
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t key = keys[i];
    keys[kept] = key;
    kept += static_cast<int32_t>(key >> shift == value);
  }
  return kept;
}

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

class SelectCall {
 public:
  SelectCall(const HostBatch& batch, const SelectArgs& args, const SelectionKernels& kernels,
             SelectionScratch& scratch)
      : batch_(batch), args_(args), kernels_(kernels), scratch_(scratch) {
    HEDDLE_CHECK(batch.piece_begin.empty(), "choosing positions of contexts with pieces");
    HEDDLE_CHECK(args.cache.n_kv_heads == 1, "an indexer has one key per position");
    FindRows();
    PlaceSpans(batch, &scratch_.span_position);
  }

  void Run(ThreadPool& pool) {
    if (scratch_.rows.empty()) return;
    const auto n_rows = static_cast<int64_t>(scratch_.rows.size());
    const int64_t at_a_time = std::max<int64_t>(1, KeptScores(n_rows, stride_) / stride_);
    scores_ =
        static_cast<float*>(scratch_.scores.Get(at_a_time * stride_ * int64_t{sizeof(float)}));
    block_floats_ = RoundUp(args_.cache.head_dim, kMaxLanes) * kScoredKeys;
    thread_floats_ =
        SelectionThreadNumbers(args_.n_heads, args_.cache.head_dim, stride_, args_.top_k) +
        kThreadsApart / 4;
    scratch_.threads.Get(pool.num_threads() * thread_floats_ * int64_t{sizeof(float)});
    for (int64_t first = 0; first < n_rows; first += at_a_time) {
      first_ = static_cast<int32_t>(first);
      RunPass(static_cast<int32_t>(std::min(n_rows, first + at_a_time)), pool);
    }
  }

 private:
  int32_t RowsOf(int32_t seq) const { return batch_.q_begin[seq + 1] - batch_.q_begin[seq]; }
  int32_t BeforeRows(int32_t seq) const { return batch_.context_len[seq] - RowsOf(seq); }
  uint64_t TreeOf(int32_t seq, int32_t i) const {
    return batch_.tree_mask[static_cast<size_t>(int64_t{batch_.q_begin[seq]} + i)];
  }

  // Notes the rows that need a list, and writes that the others have none.
  void FindRows() {
    const ChosenPlaces chosen{args_.out, args_.top_k};
    scratch_.rows.clear();
    for (int32_t s = 0; s < batch_.n_seqs(); ++s) {
      const int32_t n = RowsOf(s);
      const int32_t before = BeforeRows(s);
      const bool tree = batch_.IsTree(s);
      bool any = false;
      for (int32_t i = 0; tree && i < n; ++i) {
        any = any || before + std::popcount(TreeOf(s, i)) > args_.top_k;
      }
      for (int32_t i = 0; i < n; ++i) {
        args_.out[(batch_.q_begin[s] + i) * chosen.stride()] = 0;
        const int32_t sees = tree ? before + n : before + i + 1;
        if (tree ? !any : sees <= args_.top_k) continue;
        scratch_.rows.push_back({s, i, sees});
        stride_ = std::max(stride_, RoundUp(sees, kScoredKeys));
      }
    }
  }

  // Scores and chooses for rows [first_, end).
  void RunPass(int32_t end, ThreadPool& pool) {
    scratch_.tasks.clear();
    for (int32_t row = first_; row < end;) {
      int32_t next = row + 1;
      const int32_t seq = RowAt(row).seq;
      while (next < end && next < row + kTileRows && RowAt(next).seq == seq) ++next;
      for (int32_t begin = 0; begin < RowAt(next - 1).sees; begin += kScoredChunk) {
        scratch_.tasks.push_back({row, next - row, begin});
      }
      row = next;
    }
    const double macs = static_cast<double>(args_.n_heads) * args_.cache.head_dim;
    pool.ForEach(static_cast<int64_t>(scratch_.tasks.size()), kNsPerMac * macs * kScoredChunk,
                 [&](int64_t i, int32_t thread) {
                   Score(scratch_.tasks[static_cast<size_t>(i)], ThreadFloats(thread));
                 });
    pool.ForEach(end - first_, kNsPerChoice * static_cast<double>(stride_),
                 [&](int64_t i, int32_t thread) {
                   Choose(first_ + static_cast<int32_t>(i),
                          reinterpret_cast<uint32_t*>(ThreadFloats(thread)));
                 });
  }

  const SelectionScratch::Row& RowAt(int32_t row) const {
    return scratch_.rows[static_cast<size_t>(row)];
  }
  int64_t TokenOf(const SelectionScratch::Row& row) const {
    return batch_.q_begin[row.seq] + row.index;
  }
  float* ScoresOf(int32_t row) const { return scores_ + (row - first_) * stride_; }
  float* ThreadFloats(int32_t thread) const {
    return static_cast<float*>(scratch_.threads.Get(0)) + thread * thread_floats_;
  }

  // `memory`: the keys of a chunk in blocks of kScoredKeys, and the packed queries of a row.
  void Score(const SelectionScratch::Task& task, float* memory) const {
    const int32_t seq = RowAt(task.first_row).seq;
    const int32_t last = RowAt(task.first_row + task.n_rows - 1).sees;
    const int32_t end = std::min(task.begin + kScoredChunk, last);
    auto span = static_cast<int32_t>(
        std::upper_bound(scratch_.span_position.begin() + batch_.span_begin[seq],
                         scratch_.span_position.begin() + batch_.span_begin[seq + 1], task.begin) -
        scratch_.span_position.begin() - 1);
    float* block = memory;
    for (int32_t begin = task.begin; begin < end; begin += kScoredKeys, block += block_floats_) {
      Transpose(begin, std::min(begin + kScoredKeys, end), &span, block);
    }
    auto* packed = reinterpret_cast<int32_t*>(memory + kScoredChunk / kScoredKeys * block_floats_);
    for (int32_t i = 0; i < task.n_rows; ++i) {
      ScoreRow(task.first_row + i, task.begin, end, memory, packed);
    }
  }

  // Scores places [begin, end) for a row, as far as it sees any of their blocks.
  void ScoreRow(int32_t index, int32_t begin, int32_t end, const float* block,
                int32_t* packed) const {
    const SelectionScratch::Row& row = RowAt(index);
    if (row.sees <= begin) return;
    const int64_t t = TokenOf(row);
    const KvType type = KvTypeOf(args_.cache.dtype);
    ScoreKeysArgs scored{.type = type,
                         .keys = nullptr,
                         .queries = nullptr,
                         .weights = args_.weights.row<float>(t),
                         .n_heads = args_.n_heads,
                         .dim = args_.cache.head_dim,
                         .out = nullptr};
    scored.queries = kernels_.pack_queries(
        {type, args_.q.row<float>(t), args_.n_heads, args_.cache.head_dim, packed});
    for (int32_t place = begin; place < std::min(end, row.sees);
         place += kScoredKeys, block += block_floats_) {
      scored.keys = block;
      scored.out = ScoresOf(index) + place;
      kernels_.score_keys(scored);
    }
  }

  // `span`: the one that holds place `begin`; then that of `end`, if there is one.
  void Transpose(int32_t begin, int32_t end, int32_t* span, float* out) const {
    const KvCacheView& cache = args_.cache;
    const void* keys[kScoredKeys];
    const void* scales[kScoredKeys];
    const auto* base = static_cast<const char*>(cache.keys);
    for (int32_t place = begin; place < end; ++place) {
      while (place - scratch_.span_position[static_cast<size_t>(*span)] >=
             batch_.span_tokens[*span]) {
        ++*span;
      }
      const int32_t offset = place - scratch_.span_position[static_cast<size_t>(*span)];
      const int64_t slot = int64_t{batch_.span_page[*span]} * cache.page_tokens + offset;
      keys[place - begin] = base + RowOffset(cache, slot, 0);
      scales[place - begin] = base + ScaleOffset(cache, slot, 0);
    }
    std::fill(keys + (end - begin), keys + kScoredKeys, keys[end - begin - 1]);
    std::fill(scales + (end - begin), scales + kScoredKeys, scales[end - begin - 1]);
    kernels_.transpose_keys({KvTypeOf(cache.dtype), keys, scales, cache.head_dim, out});
  }

  // Calls visit(place) for the places that a row sees, ascending.
  template <typename Visit>
  void ForSeen(const SelectionScratch::Row& row, const Visit& visit) const {
    const bool is_tree = batch_.IsTree(row.seq);
    const int32_t whole = is_tree ? BeforeRows(row.seq) : row.sees;
    for (int32_t place = 0; place < whole; ++place) visit(place);
    if (!is_tree) return;
    const uint64_t mask = TreeOf(row.seq, row.index);
    for (int32_t place = whole; place < row.sees; ++place) {
      if ((mask >> (place - whole) & 1) != 0) visit(place);
    }
  }

  // Writes the list of a row: all places whose score is above that of the last one to choose, and
  // the first of those that are equal to it. `memory` [stride_ + top_k + 1].
  void Choose(int32_t index, uint32_t* memory) const {
    const SelectionScratch::Row& row = RowAt(index);
    int32_t sees = 0;
    ForSeen(row, [&](int32_t) { ++sees; });
    const int32_t count = std::min(sees, args_.top_k);
    int32_t* out = args_.out + TokenOf(row) * ChosenPlaces{nullptr, args_.top_k}.stride();
    *out++ = count;
    if (count == sees) return ForSeen(row, [&](int32_t place) { *out++ = place; });
    int32_t left = count;
    const uint32_t least = LastKey(row, ScoresOf(index), memory, &left);
    const auto* keys = reinterpret_cast<const uint32_t*>(ScoresOf(index));
    auto* places = reinterpret_cast<int32_t*>(memory + stride_);
    int32_t n = 0;
    ForSeen(row, [&](int32_t place) {
      const auto equal = static_cast<int32_t>(keys[place] == least);
      places[n] = place;
      n += static_cast<int32_t>(keys[place] > least) | (equal & static_cast<int32_t>(left > 0));
      left -= equal;
    });
    std::copy_n(places, count, out);
  }

  // The key of the last of the *left best scores; *left: how many of those that are equal to it are
  // among them. It is found digit by digit, from counts of the digits of those that begin like it.
  // Scores become their keys. `memory` [stride_].
  uint32_t LastKey(const SelectionScratch::Row& row, float* scores, uint32_t* memory,
                   int32_t* left) const {
    auto* keys = reinterpret_cast<uint32_t*>(scores);
    int32_t counts[2][kDigits] = {};  // by turns, since neighbours often have the same digit
    ForSeen(row, [&](int32_t place) {
      const uint32_t key = KeyOf(scores[place]);
      keys[place] = key;
      ++counts[place & 1][key >> kFirstShift];
    });
    for (int32_t i = 0; i < kDigits; ++i) counts[0][i] += counts[1][i];
    uint32_t least = LastDigit(counts[0], left);
    int32_t n = 0;
    ForSeen(row, [&](int32_t place) {
      memory[n] = keys[place];
      n += static_cast<int32_t>(keys[place] >> kFirstShift == least);
    });
    for (const int shift : {kSecondShift, 0}) {
      const int bits = shift > 0 ? kDigitBits : kSecondShift;
      std::fill_n(counts[0], kDigits, 0);
      for (int32_t i = 0; i < n; ++i) ++counts[0][memory[i] >> shift & ((1u << bits) - 1)];
      least = least << bits | LastDigit(counts[0], left);
      n = KeepKeys(memory, n, shift, least);
    }
    return least;
  }

  const HostBatch& batch_;
  const SelectArgs& args_;
  const SelectionKernels& kernels_;
  SelectionScratch& scratch_;
  int64_t stride_ = 0;        // of the scores of a row
  int64_t block_floats_ = 0;  // of kScoredKeys keys
  int64_t thread_floats_ = 0;
  float* scores_ = nullptr;
  int32_t first_ = 0;  // of the pass
};

}  // namespace

void SelectPositions(const HostBatch& batch, const SelectArgs& args,
                     const SelectionKernels& kernels, ThreadPool& pool, SelectionScratch& scratch) {
  SelectCall(batch, args, kernels, scratch).Run(pool);
}

}  // namespace heddle::kernels::cpu
