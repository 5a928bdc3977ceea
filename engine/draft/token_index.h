// Finds where the last tokens of a text occurred before in this or another text: a ring of tokens
// with chains of equal n-grams, as LZ77 compressors have them, for several lengths n ("orders").
// Counting what follows each occurrence of the longest match gives the counts of a suffix tree at
// that node, as long as there are at most max_candidates occurrences; beyond, the latest count.
//
// Unit: tokens. Bounded: the ring forgets the oldest tokens, and no call follows more than
// max_candidates links per order, whatever the tokens are. Append takes O(largest order), and
// growing is spread over many calls.
// Thread-safety: none.
// Source: Ziv and Lempel, "A Universal Algorithm for Sequential Data Compression", 1977; Oliaro et
// al., "SuffixDecoding", 2024 (counts of what follows the longest match).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine {

class TokenIndex {
 public:
  struct Options {
    std::vector<int32_t> orders = {2, 4, 10};  // ascending, 1 to kMaxOrders of them
    int32_t max_match = 32;                    // longer matches count as so long
    int32_t max_candidates = 32;
    int64_t max_tokens = 65536;  // a power of two
  };
  static constexpr int32_t kMaxOrders = 4;

  // Where the longest match ends. `ends` are the positions of the tokens that follow, latest first,
  // for Token().
  struct Occurrences {
    int32_t length = 0;  // 0: none
    std::vector<int64_t> ends;
  };

  // `expected_tokens`: what it is going to hold soon; more is no error.
  // REQUIRES: options are as their comments say, and the smallest order is at most max_match.
  TokenIndex(const Options& options, int64_t expected_tokens);
  ~TokenIndex();
  TokenIndex(TokenIndex&&) noexcept;
  TokenIndex& operator=(TokenIndex&&) noexcept;

  // kNoToken separates texts: no match and no continuation goes across it.
  void Append(TokenId token);

  // The longest matches of the end of `suffix`, at least as long as the smallest order. Overwrites
  // *found.
  void Find(std::span<const TokenId> suffix, Occurrences* found) const;

  // kNoToken behind the last token, and for what the ring has forgotten.
  TokenId Token(int64_t position) const {
    return position < begin() || position >= end_ ? kNoToken : tokens_[Slot(position)];
  }

  int64_t begin() const { return end_ - size(); }  // position of the oldest token
  int64_t end() const { return end_; }
  int64_t size() const { return end_ < capacity_ ? end_ : capacity_; }
  int64_t bytes() const;

  // Bytes for each token of capacity.
  static int64_t BytesPerToken(const Options& options);

 private:
  size_t Slot(int64_t position) const { return static_cast<size_t>(position & (capacity_ - 1)); }
  size_t Bucket(uint64_t hash, size_t order) const {
    const uint64_t upper = hash * 0x9E3779B97F4A7C15u >> 1 >> head_shift_;
    return static_cast<size_t>(upper) + order * static_cast<size_t>(capacity_);
  }
  void Reserve(int64_t capacity);
  void LinkGrams();
  bool CatchUp();
  int32_t MatchLength(int64_t end, std::span<const TokenId> suffix) const;
  void FollowChain(size_t order, size_t bucket, std::span<const TokenId> suffix,
                   Occurrences* found) const;

  Options options_;
  int64_t capacity_ = 0;  // a power of two
  int64_t end_ = 0;
  int head_shift_ = 0;
  // From calloc: the system gives large arrays their pages, zeroed, when they are first touched, so
  // that growing does not hold up the caller.
  struct Free {
    void operator()(void* array) const { std::free(array); }
  };
  template <typename T>
  using ZeroedArray = std::unique_ptr<T[], Free>;
  template <typename T>
  static ZeroedArray<T> Zeroed(size_t count);

  ZeroedArray<TokenId> tokens_;  // [capacity]
  // Links of chains: the position behind an n-gram, plus one, modulo 2^32; 0: none.
  ZeroedArray<uint32_t> heads_;     // [orders, capacity]: of each bucket
  ZeroedArray<uint32_t> previous_;  // [capacity, orders]
  // While it grows: the next, larger index, which takes over the tokens bit by bit.
  std::unique_ptr<TokenIndex> larger_;
};

}  // namespace heddle::engine
