// Attention whose parts are computed separately: chunks that are split along their context, and
// prefixes that several sequences share.
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/emulate/emulator.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr DType kSixteenBits[] = {DType::kF16, DType::kBF16};

TEST_CASE("A short chunk of a long prompt is split along its context", "[cuda][parts]") {
  for (DType cache : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    for (int32_t major : {8, 9}) {
      AttentionCase c;
      c.batch = {{{32, 1500, 700}}, 16};
      c.cache = cache;
      c.compute_major = major;
      c.poisoned = cache == DType::kF16 || cache == DType::kBF16;
      CheckAttention(c, DType::kBF16);
    }
  }
  AttentionCase plain;
  plain.batch = {{{9, 1500, 700}}, 16};
  plain.head_dim = 16;
  CheckAttention(plain, DType::kF32);
}

TEST_CASE("Split chunks keep windows, soft caps, sinks, groups and page sizes", "[cuda][parts]") {
  for (int32_t window : {500, 1030}) {
    AttentionCase c;
    c.batch = {{{50, 1400}, {70, 70}}, 32};
    c.window = window;
    c.softcap = window == 500 ? 0.0f : 3.0f;
    c.sinks = true;
    CheckAttention(c, DType::kBF16);
    c.compute_major = 8;
    CheckAttention(c, DType::kBF16);
  }
  for (auto [heads, kv_heads] : {std::pair{1, 1}, {7, 1}, {6, 2}}) {
    for (int32_t page_tokens : {8, 128}) {
      AttentionCase c;
      c.batch = {{{29, 900, 333}, {1, 80}}, page_tokens};
      c.n_heads = heads;
      c.n_kv_heads = kv_heads;
      c.head_dim = heads == 7 ? 128 : 64;
      c.pad = 8;
      CheckAttention(c, DType::kBF16);
    }
  }
}

// A system prompt of 320 tokens, and tails of any length: one row's own, part of a page, some
// pages.
AttentionCase Shared(int32_t page_tokens = 16) {
  AttentionCase c;
  c.batch = {{{1, 321}, {1, 333}, {1, 90}, {1, 400}, {1, 700, 450}, {1, 352}}, page_tokens};
  c.shared = {{{0, 1, 3, 4, 5}, 320}};
  return c;
}

TEST_CASE("A shared prefix read once gives what each sequence would have read", "[cuda][shared]") {
  for (DType cache : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    for (int32_t major : {8, 9}) {
      AttentionCase c = Shared();
      c.cache = cache;
      c.compute_major = major;
      c.poisoned = cache == DType::kF16 || cache == DType::kBF16;
      CheckAttention(c, DType::kBF16);
    }
  }
  CheckAttention(Shared(), DType::kF32);
}

TEST_CASE("Shared prefixes keep soft caps, windows that see them, and sinks once",
          "[cuda][shared]") {
  for (int32_t window : {0, 400, 1000}) {
    AttentionCase c = Shared();
    c.window = window;
    c.softcap = window == 1000 ? 4.0f : 0.0f;
    c.sinks = true;
    CheckAttention(c, DType::kBF16);
  }
}

TEST_CASE("A window that just sees a prefix sees it from every row that shares it",
          "[cuda][shared]") {
  AttentionCase c;
  std::vector<int32_t> all;
  for (int32_t s = 0; s < 24; ++s) {
    c.batch.sequences.push_back({1, 321 + s / 2});
    all.push_back(s);
  }
  c.shared = {{all, 320}};
  c.window = 332;
  for (int32_t major : {8, 9}) {
    c.compute_major = major;
    CheckAttention(c, DType::kBF16);
  }
}

TEST_CASE("Shared prefixes are packed with any grouping of heads, on pages of any size",
          "[cuda][shared]") {
  uint32_t seed = 30;
  for (auto [heads, kv_heads] : {std::pair{2, 2}, {6, 2}, {14, 2}, {40, 2}}) {
    for (int32_t page_tokens : {8, 64}) {
      AttentionCase c = Shared(page_tokens);
      c.n_heads = heads;
      c.n_kv_heads = kv_heads;
      CheckAttention(c, DType::kBF16, ++seed);
    }
  }
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  CheckAttention(Shared(), DType::kBF16, ++seed);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

// Branches copy the page that was half full when they left each other, so that it is on a page of
// its own for each; the first may have filled it since.
TEST_CASE("Branches of a request share all pages but the half-filled one", "[cuda][shared]") {
  for (DType cache : kSixteenBits) {
    AttentionCase c;
    c.batch = {{{1, 520, 393}, {1, 450, 393}, {1, 395, 393}, {1, 394}}, 16};
    c.shared = {{{0, 1, 2, 3}, 384}};
    c.cache = cache;
    c.poisoned = true;
    CheckAttention(c, DType::kBF16);
    // A page that ends early and is shared all the same.
    c.batch = {{{1, 520, 393}, {1, 450, 393}, {1, 395, 393}}, 16};
    c.shared = {{{0, 1, 2}, 393}};
    CheckAttention(c, DType::kBF16);
    // One that sees less of the last page than the others.
    c.batch = {{{1, 520, 400}, {1, 450, 400}, {1, 395, 393}, {1, 401, 400}}, 16};
    c.shared = {{{0, 1, 2, 3}, 384}, {{0, 1, 3}, 400}};
    TestBatch less = BatchOf(c);
    less.span_page[less.span_begin[2] + 24] = less.span_page[24];
    const auto device = EmulatedDevice(DType::kBF16);
    CheckAttentionOf(*device, c, less.view(), less.num_pages, 0);
  }
}

// Groups within groups, several groups, trees and short chunks among them, prompts beside them.
AttentionCase Crowd() {
  AttentionCase c;
  c.batch = {{{1, 700},
              {5, 705, 650},
              {1, 640},
              {60, 90},
              {1, 660},
              {20, 400},
              {1, 300},
              {2, 310},
              {1, 290},
              {40, 330}},
             16};
  c.shared = {{{0, 1, 2, 4, 5}, 288}, {{0, 1, 2, 4}, 608}, {{6, 7, 8, 9}, 272}};
  return c;
}

TEST_CASE("Several prefixes, trees and chunks share a step", "[cuda][shared]") {
  for (DType cache : {DType::kBF16, DType::kInt8}) {
    AttentionCase c = Crowd();
    c.cache = cache;
    c.trees = {1, 5, 7};
    c.sinks = true;
    CheckAttention(c, DType::kBF16);
    c.compute_major = 8;
    CheckAttention(c, DType::kBF16);
  }
}

TEST_CASE("Layers of every group share the prefixes of their own spans", "[cuda][shared]") {
  AttentionCase c = Crowd();
  const TestBatch far = BatchOf(c, 7);
  c.shared = {{{1, 2, 4}, 608}};
  c.batch.sequences[0].context = 90;
  const TestBatch near = BatchOf(c, 8);
  const BatchSpans spans = {near.kv_slot, near.span_begin, near.span_page, near.span_tokens,
                            near.context_len};
  HostBatch grouped = far.view();
  grouped.more_groups = {&spans, 1};
  const auto device = EmulatedDevice(DType::kBF16);
  CheckAttentionOf(*device, c, grouped, far.num_pages, 0);
  c.window = 800;
  CheckAttentionOf(*device, c, grouped, near.num_pages, 1);
}

TEST_CASE("A replayed step shares what its own pages are", "[cuda][shared]") {
  const auto device = EmulatedDevice(DType::kBF16);
  AttentionCase c = Shared();
  for (uint32_t seed : {1u, 2u, 3u}) {
    c.shared = {{{0, 1, 3, 4, 5}, 320}};
    if (seed == 2) c.shared = {{{0, 3, 5}, 304}};
    const TestBatch batch = BatchOf(c, seed);
    CheckAttentionOf(*device, c, batch.view(), batch.num_pages, 0, seed);
    const TestBatch again = BatchOf(c, seed + 5);
    CheckAttentionOf(*device, c, again.view(), again.num_pages, 0, seed);
  }
}

// Prompts on warpgroups and warps, decodes, splits and shared prefixes; types that no matrix
// instruction reads; odd sizes.
TEST_CASE("Queries that meet half of each key match the reference in every cache type",
          "[cuda][halves]") {
  const BatchSpec mixed = {{{5, 5}, {1, 77}, {37, 90, 9}, {1, 600}}, 16};
  for (const DType cache : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kInt8}) {
    AttentionCase c = {.batch = mixed, .n_heads = 4, .n_kv_heads = 1, .head_dim = 64};
    c.cache = cache;
    c.half_keys = true;
    c.window = cache == DType::kF16 ? 40 : 0;
    CheckAttention(c, DType::kBF16);
    if (cache == DType::kBF16) c.compute_major = 8;
    if (cache == DType::kBF16 || cache == DType::kF32) CheckAttention(c, DType::kF32);
    if (cache == DType::kBF16) CheckAttention(c, DType::kBF16);
  }
  for (const auto& [heads, kv_heads, dim] :
       {std::tuple(2, 1, 2), std::tuple(6, 3, 20), std::tuple(10, 5, 24), std::tuple(8, 2, 128)}) {
    CheckAttention({.batch = {{{7, 19}, {1, 33}}, 8},
                    .n_heads = heads,
                    .n_kv_heads = kv_heads,
                    .head_dim = dim,
                    .cache = DType::kBF16,
                    .half_keys = true},
                   DType::kBF16);
  }
  CheckAttention({.batch = {{{16, 75}, {1, 60}}, 16},
                  .n_heads = 4,
                  .head_dim = 64,
                  .cache = DType::kBF16,
                  .half_keys = true,
                  .trees = {0}},
                 DType::kBF16);
}

// Whole queries of 16 rows of a key head are 4 KiB: half of the workspace holds those of all six
// heads, of three, of two, and of none.
TEST_CASE("Whole queries are made of as many key heads as the workspace has room for",
          "[cuda][halves]") {
  AttentionCase c = {.batch = {{{13, 40}, {3, 70}}, 16},
                     .n_heads = 12,
                     .n_kv_heads = 6,
                     .head_dim = 64,
                     .cache = DType::kBF16,
                     .half_keys = true};
  c.sinks = true;
  c.lse = false;
  for (const int64_t bytes : {int64_t{4} << 20, int64_t{28} << 10, int64_t{16} << 10}) {
    CheckAttention(c, DType::kBF16, 1, bytes);
  }
  const TestBatch batch = BatchOf(c);
  TestCache cache(c.cache, batch.num_pages, 16, c.n_kv_heads, c.head_dim, 1);
  Matrix queries(16, 12 * 32), zeros(16, 12 * 64);
  Activations q(DType::kBF16, queries), out(DType::kBF16, zeros);
  const auto device = EmulatedDevice(DType::kBF16, int64_t{4} << 10);
  REQUIRE(device->Plan(batch.view()).ok());
  const absl::Status status = device->Run([&](Ops& ops) {
    ops.Attention({.q = q.tensor(),
                   .n_heads = 12,
                   .half_keys = true,
                   .cache = cache.view,
                   .scale = 0.125f,
                   .out = out.tensor()});
  });
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("--max-batch-tokens"));
}

}  // namespace
}  // namespace heddle::kernels::test
