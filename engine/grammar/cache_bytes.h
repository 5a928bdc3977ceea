// The memory that the compiled grammars of one model hold together, and how much of it each may
// keep for masks and contexts, which it can recompute.
//
// Unit: bytes allocated on the heap (capacities, not sizes). A grammar's necessary part (its
// automaton) is counted but not bounded here: GrammarCompiler forgets unused grammars when all
// together hold too much.
// Thread-safety: all methods from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace heddle::engine::grammar {

inline constexpr size_t kDefaultCacheBytes = size_t{256} << 20;

class CacheBytes {
 public:
  explicit CacheBytes(size_t max_bytes) : max_bytes_(max_bytes) {}

  size_t max_bytes() const { return max_bytes_; }
  size_t held() const { return held_.load(std::memory_order_relaxed); }
  int32_t num_grammars() const { return num_grammars_.load(std::memory_order_relaxed); }
  bool IsOver() const { return held() > max_bytes_; }

  // Bytes of contexts, and as many of masks of states, that one grammar may keep. It is a third of
  // the grammar's even share, so that both and their momentary excess fit; never so little that
  // each token would recompute a mask, and never more than any JSON was seen to use.
  size_t KeepLimit() const {
    constexpr size_t kLeast = size_t{2} << 20;
    constexpr size_t kMost = size_t{48} << 20;
    const auto count = static_cast<size_t>(std::max(1, num_grammars()));
    return std::clamp(max_bytes_ / count / 3, kLeast, kMost);
  }

  void AddGrammar() { num_grammars_.fetch_add(1, std::memory_order_relaxed); }
  void RemoveGrammar(size_t bytes) {
    num_grammars_.fetch_sub(1, std::memory_order_relaxed);
    held_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  // Books that a grammar that held `before` bytes now holds `now`.
  void Update(size_t before, size_t now) {
    held_.fetch_add(now - before, std::memory_order_relaxed);  // modulo 2^64
  }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> held_{0};
  std::atomic<int32_t> num_grammars_{0};
};

}  // namespace heddle::engine::grammar
