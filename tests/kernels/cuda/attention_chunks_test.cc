// Attention in chunks on every kernel of the emulated CUDA device, against the reference: rows see
// their chunk of the positions, also where drafts and tiles lie across a border.
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

// Prompts, decodes and short chunks whose rows are on both sides of borders.
AttentionCase Chunks(int32_t size) {
  AttentionCase c;
  c.batch = {{{1, 40}, {70, 75}, {3, 131, 5}, {33, 600, 77}, {1, size}, {1, size + 1}, {37, 90}},
             16};
  c.window = size;
  c.in_chunks = true;
  return c;
}

TEST_CASE("Rows see their chunk in every cache type, on warps and on warpgroups",
          "[cuda][chunks]") {
  for (const DType cache : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kInt8}) {
    for (const int32_t major : {8, 9}) {
      AttentionCase c = Chunks(cache == DType::kF16 ? 17 : 64);
      c.cache = cache;
      c.compute_major = major;
      c.poisoned = KvElementBytes(cache) == 2;
      CheckAttention(c, DType::kBF16);
    }
  }
  for (const int32_t size : {1, 64, 4096}) {
    AttentionCase c = Chunks(size);
    c.head_dim = 16;
    c.passed = size == 64 ? 3 * 64 + 10 : 0;  // contexts that have lost their front
    CheckAttention(c, DType::kF32);
  }
}

TEST_CASE("Chunks have borders inside of trees", "[cuda][chunks][tree]") {
  for (const int32_t size : {1, 3, 50}) {
    AttentionCase c = Chunks(size);
    c.batch.sequences = {{1, 40}, {64, 75}, {3, 131, 5}, {33, 600, 77}, {1, 150}, {37, 90}, {7, 7}};
    c.trees = {0, 1, 3, 6};
    for (const int32_t major : {8, 9}) {
      c.compute_major = major;
      CheckAttention(c, DType::kBF16, static_cast<uint32_t>(size));
    }
    c.head_dim = 16;
    c.passed = 2;
    CheckAttention(c, DType::kF32, static_cast<uint32_t>(size));
  }
}

TEST_CASE("Chunks are split along contexts, and share the prefixes that are in them",
          "[cuda][chunks]") {
  AttentionCase split;
  split.batch = {{{40, 1300, 100}, {1, 700}, {60, 900}}, 32};
  split.trees = {0};
  split.window = 850;
  split.in_chunks = true;
  split.sinks = true;
  CheckAttention(split, DType::kBF16);
  split.compute_major = 8;
  CheckAttention(split, DType::kBF16);

  AttentionCase shared;
  std::vector<int32_t> all;
  for (int32_t s = 0; s < 24; ++s) {  // the last ones are in the second chunk
    shared.batch.sequences.push_back({1, 321 + s});
    all.push_back(s);
  }
  shared.shared = {{all, 320}};
  shared.window = 340;
  shared.in_chunks = true;
  for (const int32_t major : {8, 9}) {
    shared.compute_major = major;
    CheckAttention(shared, DType::kBF16);
  }
}

}  // namespace
}  // namespace heddle::kernels::test
