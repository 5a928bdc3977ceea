// Trees of drafts on every attention kernel of the emulated CUDA device, against the reference.
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/emulate/emulator.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

// Trees of one row and of 64, on short and long contexts, among decodes and prompts; contexts end
// inside pages.
AttentionCase Trees(int32_t page_tokens = 16) {
  AttentionCase c;
  c.batch = {{{1, 40}, {64, 75}, {3, 131, 5}, {33, 600, 77}, {1, 150}, {37, 90}, {7, 7}},
             page_tokens};
  c.trees = {0, 1, 3, 6};
  return c;
}

TEST_CASE("Rows of a tree see the context and their ancestors in every cache type",
          "[cuda][tree]") {
  for (DType cache : {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kInt8}) {
    AttentionCase c = Trees();
    c.cache = cache;
    c.poisoned = cache == DType::kF16 || cache == DType::kBF16;
    CheckAttention(c, DType::kBF16, 2);
    c.compute_major = 8;
    CheckAttention(c, DType::kBF16, 3);
    if (KvElementBytes(cache) == 2) continue;
    c.head_dim = 16;
    CheckAttention(c, DType::kF32, 4);
  }
}

TEST_CASE("Trees keep windows, soft caps and sinks, whose windows bound only what came before",
          "[cuda][tree]") {
  for (int32_t window : {1, 5, 64, 100}) {
    for (int32_t major : {8, 9}) {
      AttentionCase c = Trees();
      c.window = window;
      c.softcap = window == 64 ? 5.0f : 0.0f;
      c.sinks = window > 5;
      c.compute_major = major;
      CheckAttention(c, DType::kBF16, static_cast<uint32_t>(window));
    }
    AttentionCase c = Trees();
    c.window = window;
    c.head_dim = 16;
    c.sinks = window > 5;
    CheckAttention(c, DType::kF32, static_cast<uint32_t>(window));
  }
}

TEST_CASE("Trees are packed with any grouping of heads, on pages of any size", "[cuda][tree]") {
  uint32_t seed = 20;
  for (auto [heads, kv_heads] : {std::pair{1, 1}, {4, 4}, {6, 2}, {7, 1}, {20, 1}}) {
    for (int32_t page_tokens : {8, 64}) {
      AttentionCase c = Trees(page_tokens);
      c.n_heads = heads;
      c.n_kv_heads = kv_heads;
      CheckAttention(c, DType::kBF16, ++seed);
    }
  }
  AttentionCase wide = Trees();
  wide.head_dim = 128;
  CheckAttention(wide, DType::kBF16, ++seed);
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  CheckAttention(Trees(), DType::kBF16, ++seed);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("A tree on a long context is split and merged", "[cuda][tree]") {
  for (int32_t major : {8, 9}) {
    AttentionCase c;
    c.batch = {{{40, 1300, 100}, {1, 700}}, 32};
    c.trees = {0, 1};
    c.sinks = true;
    c.compute_major = major;
    CheckAttention(c, DType::kBF16);
    c.window = 900;
    CheckAttention(c, DType::kBF16);
  }
}

// Steps have one size, so that their launches are one graph's with other parameters.
TEST_CASE("A replayed step sees the tree that it has, not that of the step before",
          "[cuda][tree]") {
  const auto device = EmulatedDevice(DType::kBF16);
  AttentionCase c;
  c.batch = {{{5, 300}, {7, 90}, {1, 40}}, 16};
  for (uint32_t seed : {1u, 2u, 3u}) {
    c.trees = {0, 1};
    const TestBatch batch = BatchOf(c, seed);
    CheckAttentionOf(*device, c, batch.view(), batch.num_pages, 0, seed);
    c.trees = {};
    const TestBatch chain = BatchOf(c, seed);
    CheckAttentionOf(*device, c, chain.view(), chain.num_pages, 0, seed);
  }
}

TEST_CASE("Trees are seen by the layers of every group", "[cuda][tree]") {
  AttentionCase c = Trees();
  const TestBatch far = BatchOf(c, 5);
  // The second group has lost what lies before its window.
  c.batch.sequences = {{1, 40}, {64, 70}, {3, 131, 5}, {33, 88}, {1, 150}, {37, 90}, {7, 7}};
  const TestBatch near = BatchOf(c, 6);
  const BatchSpans spans = {near.kv_slot, near.span_begin, near.span_page, near.span_tokens,
                            near.context_len};
  HostBatch grouped = far.view();
  grouped.more_groups = {&spans, 1};
  for (DType act : {DType::kBF16, DType::kF32}) {
    const auto device = EmulatedDevice(act);
    c.window = 0;
    CheckAttentionOf(*device, c, grouped, far.num_pages, 0);
    c.window = 50;
    CheckAttentionOf(*device, c, grouped, near.num_pages, 1);
  }
}

}  // namespace
}  // namespace heddle::kernels::test
