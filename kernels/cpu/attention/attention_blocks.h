// Walks the context of an attention call block by block, and prefetches the next blocks.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

// Parts whose sums need most of the registers stay separate functions: when they were inlined side
// by side, one part's constants pushed another's sums into memory inside the loop (GCC 12).
#define HEDDLE_KERNEL_PART __attribute__((noinline))

// The addresses of one block's rows of keys and values. Rows beyond `count` repeat the last one:
// results for them are masked or not read.
struct BlockRows {
  const char* keys[kBlockTokens];
  const char* values[kBlockTokens];
  const char* key_scales_at[kBlockTokens];  // for scaled types only, F32 at any alignment
  const char* value_scales_at[kBlockTokens];
  float key_scales[kBlockTokens];  // valid after LoadScales; 0 beyond `count`
  float value_scales[kBlockTokens];
  int32_t count;

  void LoadScales() {
    for (int32_t j = 0; j < count; ++j) {
      std::memcpy(key_scales + j, key_scales_at[j], sizeof(float));
      std::memcpy(value_scales + j, value_scales_at[j], sizeof(float));
    }
    for (int32_t j = count; j < kBlockTokens; ++j) key_scales[j] = value_scales[j] = 0;
  }
};

// Walks the runs block by block.
struct RunCursor {
  const KeyRun* run = nullptr;
  int32_t offset = 0;

  template <bool kScaled>
  void NextBlock(int32_t count, int64_t row_bytes, BlockRows& rows) {
    rows.count = count;
    for (int32_t j = 0; j < count;) {
      const int32_t left = run->num_tokens - offset;
      const int32_t n = count - j < left ? count - j : left;
      TakeRows<kScaled>(j, n, row_bytes, rows);
      j += n;
      offset += n;
      if (n == left) {
        ++run;
        offset = 0;
      }
    }
    for (int32_t j = count; j < kBlockTokens; ++j) {
      rows.keys[j] = rows.keys[count - 1];
      rows.values[j] = rows.values[count - 1];
    }
  }

 private:
  // Sets rows [j, j + n) of the block to the next `n` rows of the run.
  template <bool kScaled>
  void TakeRows(int32_t j, int32_t n, int64_t row_bytes, BlockRows& rows) const {
    const char* key = static_cast<const char*>(run->keys) + offset * row_bytes;
    const char* value = static_cast<const char*>(run->values) + offset * row_bytes;
    for (int32_t i = 0; i < n; ++i) {
      rows.keys[j + i] = key + i * row_bytes;
      rows.values[j + i] = value + i * row_bytes;
    }
    if (!kScaled) return;
    const char* key_scale = static_cast<const char*>(run->key_scales) + int64_t{offset} * 4;
    const char* value_scale = static_cast<const char*>(run->value_scales) + int64_t{offset} * 4;
    for (int32_t i = 0; i < n; ++i) {
      rows.key_scales_at[j + i] = key_scale + i * 4;
      rows.value_scales_at[j + i] = value_scale + i * 4;
      if (i % 16 == 0) {
        __builtin_prefetch(key_scale + i * 4);
        __builtin_prefetch(value_scale + i * 4);
      }
    }
  }
};

// The blocks of a call in order, with a look-ahead of kAhead blocks: pages lie anywhere in memory,
// in pieces too short for the processor's own prefetching, so a later block is prefetched while an
// earlier one is computed, line by line between its loads.
template <bool kScaled, int32_t kAhead>
class BlockQueue {
 public:
  static_assert(kAhead <= kMaxBlocksAhead);

  BlockQueue(const AttendArgs& args, int64_t row_bytes)
      : row_bytes_(row_bytes),
        cursor_{args.runs},
        left_(args.end - args.begin),
        ahead_{args.ahead},
        ahead_left_(args.ahead_tokens) {
    for (int32_t i = 0; i < kAhead; ++i) Append();
  }

  // Makes the first or the next block the current one. REQUIRES: there is one.
  void Advance() {
    Append();
    if (kScaled) blocks_[appended_ % kSlots].LoadScales();
  }
  const BlockRows& current() const { return blocks_[appended_ % kSlots]; }
  // The block to prefetch meanwhile; the current one if there is none.
  const BlockRows& upcoming() const {
    return ended_ ? current() : blocks_[(appended_ - 1) % kSlots];
  }

 private:
  static constexpr int32_t kSlots = kAhead + 1;

  void Append() {
    BlockRows& rows = blocks_[appended_++ % kSlots];
    if (left_ > 0) {
      Take(cursor_, left_, rows);
    } else if (ahead_left_ > 0) {
      Take(ahead_, ahead_left_, rows);
    } else {
      ended_ = true;
    }
  }
  void Take(RunCursor& cursor, int32_t& left, BlockRows& rows) {
    const int32_t count = left < kBlockTokens ? left : kBlockTokens;
    cursor.NextBlock<kScaled>(count, row_bytes_, rows);
    left -= count;
  }

  const int64_t row_bytes_;
  RunCursor cursor_;
  int32_t left_;
  RunCursor ahead_;
  int32_t ahead_left_;
  int32_t appended_ = 0;
  bool ended_ = false;
  BlockRows blocks_[kSlots];
};

// Bit j says that, by its tree, query q sees position begin + j.
inline uint32_t SeenOfTree(const AttendArgs& args, int32_t q, int32_t begin) {
  static_assert(kBlockTokens == 32);
  const int32_t first = begin - args.tree_begin;  // tree row of the block's first position
  if (args.tree == nullptr || first <= -kBlockTokens) return UINT32_MAX;
  if (first >= 64) return 0;
  const uint64_t mask = args.tree[q];
  if (first >= 0) return static_cast<uint32_t>(mask >> first);
  return static_cast<uint32_t>(mask << -first | ((uint64_t{1} << -first) - 1));
}

// Prefetches the rows of the next block, keys while scores are computed and values while outputs
// are: one row per step of those loops, in order of address, so that no burst of requests fills the
// queue of misses and the arithmetic never waits. It is one block ahead: two would evict each other
// from L1, where pages of 8 KB map the rows of one head to half of the sets.
class RowPrefetch {
 public:
  RowPrefetch(const char* const (&rows)[kBlockTokens], int64_t row_bytes)
      : row_(rows), end_(rows + kBlockTokens), row_bytes_(row_bytes) {}

  void Next() {
    if (row_ == end_) return;
    for (int64_t offset = 0; offset < row_bytes_; offset += 64) __builtin_prefetch(*row_ + offset);
    ++row_;
  }
  void Rest() {
    while (row_ != end_) Next();
  }

 private:
  const char* const* row_;
  const char* const* end_;
  int64_t row_bytes_;
};

}  // namespace
}  // namespace heddle::kernels::cpu
