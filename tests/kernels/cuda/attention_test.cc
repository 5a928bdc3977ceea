// Attention on the emulated CUDA device, every kernel it can choose, against the reference.
#include <utility>

#include "catch2/catch.hpp"
#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/attention/attention_params.h"
#include "tests/emulate/emulator.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/layer_groups.h"
#include "tests/support/long_runs.h"

namespace heddle::kernels::test {
namespace {

using heddle::test::Some;

BatchSpec Mixed() {
  return {{{1, 1}, {1, 77}, {5, 5}, {37, 90, 9}, {1, 200, 20}, {3, 131, 5}}, 16};
}

TEST_CASE("Mixed prompts and decodes match the reference in every cache type", "[cuda]") {
  for (DType cache : {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kInt8}) {
    CheckAttention({.batch = Mixed(), .cache = cache}, DType::kBF16);
    CheckAttention({.batch = Mixed(), .cache = cache, .compute_major = 8}, DType::kBF16);
    CheckAttention({.batch = Mixed(), .cache = cache}, DType::kF32);
  }
}

TEST_CASE("Every head size takes its kernel", "[cuda]") {
  const BatchSpec batch = {{{1, 150}, {20, 70}}, 8};
  for (int32_t head_dim : {8, 16, 48, 64, 80, 96, 128, 256}) {
    for (int32_t major : {8, 9}) {
      CheckAttention({.batch = batch,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .head_dim = head_dim,
                      .compute_major = major},
                     DType::kBF16);
    }
  }
  for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
    for (int32_t head_dim : {16, 48, 64, 80, 128, 256}) {
      CheckAttention(
          {.batch = batch, .n_heads = 2, .n_kv_heads = 1, .head_dim = head_dim, .cache = cache},
          DType::kBF16);
    }
    for (int32_t head_dim : {7, 24}) {  // not for matrix instructions
      CheckAttention(
          {.batch = batch, .n_heads = 2, .n_kv_heads = 1, .head_dim = head_dim, .cache = cache},
          DType::kBF16);
    }
  }
  for (int32_t head_dim : {12, 520}) {  // not for matrix instructions
    CheckAttention({.batch = batch, .n_heads = 2, .n_kv_heads = 1, .head_dim = head_dim},
                   DType::kBF16);
  }
}

// Values of their own pass through one stage, keys through two; of 8 bits both become 16 in the
// same memory. Contexts of less than a stage, a stage, and several; splits; a prefix that is
// shared.
TEST_CASE("Heads of 257 to 512 take their kernel in prompts, decoding and both", "[cuda][wide]") {
  const BatchSpec batch = {{{1, 1}, {1, 64}, {1, 129}, {3, 40}, {17, 66, 9}}, 16};
  uint32_t seed = 60;
  for (const DType cache : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kInt8}) {
    AttentionCase c = {.batch = batch, .n_heads = 8, .n_kv_heads = 2, .head_dim = 512};
    c.cache = cache;
    c.poisoned = cache == DType::kBF16 || cache == DType::kF16;
    c.rounds_keys = cache == DType::kInt8;
    CheckAttention(c, DType::kBF16, ++seed);
    c.batch = {{{1, 300}, {20, 70}}, 32};
    c.n_heads = 2;
    c.head_dim = cache == DType::kF16 ? 264 : 272;
    c.window = 50;
    c.sinks = true;
    c.softcap = 20;
    CheckAttention(c, DType::kBF16, ++seed);
  }
  AttentionCase trees = {
      .batch = {{{9, 80}, {30, 90}, {1, 20}}, 16}, .n_heads = 2, .n_kv_heads = 1};
  trees.head_dim = 384;
  trees.cache = DType::kBF16;
  trees.trees = {0, 1};
  CheckAttention(trees, DType::kBF16, ++seed);
  AttentionCase shared = {
      .batch = {{{1, 300}, {1, 290}, {1, 333}}, 16}, .n_heads = 4, .n_kv_heads = 1};
  shared.head_dim = 320;
  shared.cache = DType::kBF16;
  shared.shared = {{{0, 1, 2}, 288}};
  CheckAttention(shared, DType::kBF16, ++seed);
}

// Tiles of 16 rows where a row has up to 32 heads, of 64 for more and for prompts; stages of 64 and
// 32 keys.
TEST_CASE("Latent caches take their kernel in prompts, decoding and both", "[cuda][latent]") {
  const BatchSpec batch = {{{1, 1}, {1, 63}, {1, 129}, {3, 40}, {17, 66, 9}}, 16};
  for (auto [heads, head_dim] :
       Some(3, {std::pair{1, 264}, {16, 576}, {40, 576}, {5, 512}, {24, 320}})) {
    for (DType cache : {DType::kBF16, DType::kF16}) {
      CheckAttention({.batch = batch,
                      .n_heads = heads,
                      .n_kv_heads = 1,
                      .head_dim = head_dim,
                      .cache = cache,
                      .latent = true,
                      .poisoned = true},
                     DType::kBF16);
    }
  }
  // Caches of 8 bits.
  for (auto [heads, head_dim] : Some(2, {std::pair{1, 272}, {16, 576}, {40, 512}})) {
    for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
      CheckAttention({.batch = batch,
                      .n_heads = heads,
                      .n_kv_heads = 1,
                      .head_dim = head_dim,
                      .cache = cache,
                      .latent = true,
                      .poisoned = true},
                     DType::kBF16);
    }
  }
  // Rows that are not at 16 bytes; caches that take the kernel for any shape.
  const BatchSpec few = {{{1, 70}, {4, 9}}, 4};
  CheckAttention(
      {.batch = few, .n_heads = 4, .n_kv_heads = 1, .head_dim = 288, .pad = 2, .latent = true},
      DType::kBF16);
  for (DType cache : {DType::kInt8, DType::kF8E4M3, DType::kF32}) {
    CheckAttention({.batch = few,
                    .n_heads = 2,
                    .n_kv_heads = 1,
                    .head_dim = 280,
                    .cache = cache,
                    .latent = true},
                   DType::kBF16);
  }
}

TEST_CASE("Latent caches keep windows, caps, sinks, splits, trees and shared prefixes",
          "[cuda][latent]") {
  const AttentionCase plain = {.batch = {{{1, 700}, {2, 300}, {20, 290}}, 16},
                               .n_heads = 8,
                               .n_kv_heads = 1,
                               .head_dim = 320,
                               .cache = DType::kBF16,
                               .latent = true};
  CheckAttention(plain, DType::kBF16);
  AttentionCase c = plain;
  c.window = 50;
  c.softcap = 2;
  c.sinks = true;
  CheckAttention(c, DType::kBF16);
  for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
    c.cache = cache;
    CheckAttention(c, DType::kBF16);
  }
  c = plain;
  c.both_ways = true;
  CheckAttention(c, DType::kBF16);
  c = plain;
  c.batch = {{{5, 40}, {1, 20}, {12, 300}}, 16};
  c.trees = {0, 2};
  CheckAttention(c, DType::kBF16);
  c.window = 7;
  CheckAttention(c, DType::kBF16);
  for (int32_t heads : {4, 40}) {
    c = plain;
    c.n_heads = heads;
    c.batch = {{{1, 600}, {1, 590}, {1, 700}, {1, 30}}, 16};
    c.shared = {{{0, 1, 2}, 560}};
    CheckAttention(c, DType::kBF16);
  }
}

TEST_CASE("Any grouping of heads is packed and unpacked rightly", "[cuda]") {
  const BatchSpec batch = {{{1, 140}, {2, 30}, {30, 61}}, 16};
  for (auto [heads, kv_heads] : {std::pair{1, 1}, {4, 4}, {6, 2}, {7, 1}, {16, 1}, {20, 1}}) {
    CheckAttention({.batch = batch, .n_heads = heads, .n_kv_heads = kv_heads, .head_dim = 32},
                   DType::kBF16);
  }
}

TEST_CASE("Windows, soft caps and sinks match the reference, in prompts and over splits",
          "[cuda]") {
  for (DType act : {DType::kBF16, DType::kF32}) {
    for (int32_t window : {1, 7, 64, 100}) {
      CheckAttention({.batch = Mixed(), .window = window, .sinks = window == 7}, act);
    }
    CheckAttention({.batch = Mixed(), .softcap = 5}, act);
    CheckAttention({.batch = Mixed(), .sinks = true}, act);
    CheckAttention({.batch = Mixed(), .window = 50, .softcap = 2, .sinks = true}, act);
    for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
      CheckAttention({.batch = Mixed(), .cache = cache, .window = 50, .softcap = 2, .sinks = true},
                     act);
    }
  }
}

// More tiles than multiprocessors, tiles with one row more or less, stages with one key more or
// less.
BatchSpec Prompts(int32_t page_tokens) {
  return {{{150, 150}, {65, 193, 50}, {17, 128}, {64, 65}, {128, 513, 300}, {1, 40}}, page_tokens};
}

TEST_CASE("Prompts on warpgroups match the reference on pages of any size", "[cuda][hopper]") {
  for (int32_t page_tokens : Some(2, {8, 16, 64, 128})) {
    for (DType cache : {DType::kF16, DType::kBF16}) {
      CheckAttention({.batch = Prompts(page_tokens),
                      .n_kv_heads = page_tokens == 16 ? 1 : 2,
                      .head_dim = cache == DType::kF16 ? 64 : 128,
                      .cache = cache,
                      .poisoned = true},
                     DType::kBF16);
    }
  }
  CheckAttention({.batch = Prompts(4), .n_kv_heads = 2}, DType::kBF16);  // too small: on warps
}

TEST_CASE("Prompts on warpgroups keep windows, soft caps, sinks and groups", "[cuda][hopper]") {
  const BatchSpec batch = {{{100, 333, 129}, {70, 70}}, 32};
  for (int32_t window : {1, 50, 128, 200}) {
    CheckAttention({.batch = batch, .window = window, .sinks = window == 50, .poisoned = true},
                   DType::kBF16);
  }
  CheckAttention({.batch = batch, .softcap = 5, .poisoned = true}, DType::kBF16);
  CheckAttention({.batch = batch, .head_dim = 128, .window = 90, .softcap = 2, .sinks = true},
                 DType::kBF16);
  for (auto [heads, kv_heads] : {std::pair{1, 1}, {6, 2}, {7, 1}}) {
    CheckAttention({.batch = {{{90, 190}}, 16}, .n_heads = heads, .n_kv_heads = kv_heads},
                   DType::kBF16);
  }
  CheckAttention({.batch = batch, .pad = 8}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  CheckAttention({.batch = batch, .head_dim = 128, .poisoned = true}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

// Texts that are read whole, and rows behind a context, which see what is behind them all the same.
TEST_CASE("Rows both ways see what is behind them, within their window", "[cuda]") {
  const BatchSpec texts = {{{1, 1}, {5, 5}, {150, 150}, {65, 65}, {20, 190}}, 16};
  for (DType act : {DType::kBF16, DType::kF32}) {
    for (int32_t window : Some(2, {0, 64, 1, 7, 130})) {
      CheckAttention({.batch = texts, .window = window, .both_ways = true, .poisoned = true}, act);
    }
  }
  for (int32_t window : {0, 50}) {
    CheckAttention({.batch = texts, .window = window, .both_ways = true, .compute_major = 8},
                   DType::kBF16);
    CheckAttention({.batch = texts, .head_dim = 24, .window = window, .both_ways = true},
                   DType::kBF16);
  }
}

TEST_CASE("Biases of distances match the reference", "[cuda]") {
  const BatchSpec texts = {{{1, 1}, {5, 5}, {150, 150}, {20, 190}}, 16};
  for (DType act : {DType::kBF16, DType::kF32}) {
    for (int32_t window : Some(1, {64, 0})) {
      CheckAttention({.batch = texts, .window = window, .both_ways = true, .bias = true}, act);
    }
  }
}

// Each key is in three tiles or more: on a copy of the pages in 16 bits if the cache has 8.
TEST_CASE("Long chunks over caches of 8 bits match the reference", "[cuda][hopper]") {
  const BatchSpec batch = {{{1, 300}, {200, 333, 129}, {1, 20}, {190, 190}}, 16};
  for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
    for (int32_t page_tokens : Some(2, {16, 128, 8})) {
      AttentionCase c = {.batch = batch, .n_heads = 8, .cache = cache};
      c.batch.page_tokens = page_tokens;
      c.head_dim = page_tokens == 16 ? 128 : 64;
      c.rounds_keys = cache == DType::kInt8;
      c.codes_queries = cache == DType::kF8E4M3 && c.head_dim == 128;
      CheckAttention(c, DType::kBF16);
    }
    CheckAttention({.batch = batch,
                    .n_heads = 8,
                    .cache = cache,
                    .window = 90,
                    .softcap = 2,
                    .sinks = true,
                    .rounds_keys = cache == DType::kInt8},
                   DType::kBF16);
    CheckAttention({.batch = batch, .n_heads = 8, .cache = cache, .compute_major = 8},
                   DType::kBF16);
    // These are computed in parts, which are merged.
    CheckAttention({.batch = {{{100, 1500, 77}}, 16},
                    .n_kv_heads = 1,
                    .cache = cache,
                    .rounds_keys = cache == DType::kInt8},
                   DType::kBF16);
  }
}

TEST_CASE("Each kind of attention takes the kernel of its row in the table", "[cuda][hopper]") {
  using cuda::AttentionKernel;
  AttentionArgs args;
  args.scale = 1;
  args.cache = {
      .dtype = DType::kBF16, .num_pages = 9, .page_tokens = 16, .n_kv_heads = 1, .head_dim = 128};
  alignas(16) uint8_t memory[32] = {};
  args.cache.keys = memory;
  args.cache.values = memory + 16;
  auto choose = [&](bool hopper, DType act = DType::kBF16, int32_t shared_bytes = 227 << 10) {
    return cuda::ChooseAttention(args, act, hopper, shared_bytes);
  };
  CHECK(choose(true).prefill == AttentionKernel::kHopper);
  CHECK(choose(true).prefill_rows == cuda::kHopperTileRows);
  CHECK(choose(true).decode == AttentionKernel::kFlash);
  CHECK(choose(false).prefill == AttentionKernel::kFlash);
  CHECK(choose(true, DType::kF32).prefill == AttentionKernel::kPlain);
  for (int32_t head_dim : {80, 96, 256}) {
    args.cache.head_dim = head_dim;
    CHECK(choose(true).prefill == AttentionKernel::kFlash);
  }
  // Shared memory of a block: the Programming Guide's for 8.0, and for 8.6 and 8.9.
  constexpr int32_t kAmpere = 163 << 10, kAda = 99 << 10;
  CHECK(choose(false, DType::kBF16, kAmpere).prefill == AttentionKernel::kPlain);  // 168 KiB
  CHECK(choose(false, DType::kBF16, kAmpere).decode == AttentionKernel::kFlash);   // 142 KiB
  CHECK(choose(false, DType::kBF16, kAda).decode == AttentionKernel::kPlain);
  args.cache.head_dim = 512;
  CHECK(choose(true).prefill == AttentionKernel::kWideHeads);
  CHECK(choose(true).prefill_rows == cuda::kPrefillTileRows);
  CHECK(choose(true).decode == AttentionKernel::kWideHeads);
  CHECK(choose(false, DType::kBF16, kAmpere).prefill == AttentionKernel::kPlain);  // 174 KiB
  CHECK(choose(true, DType::kF32).prefill == AttentionKernel::kPlain);
  args.cache.head_dim = 576;
  CHECK(choose(true).prefill == AttentionKernel::kPlain);
  args.cache.values = args.cache.keys;
  CHECK(choose(true).prefill == AttentionKernel::kLatent);
  CHECK(choose(true).decode == AttentionKernel::kLatent);
  CHECK(choose(false, DType::kBF16, kAmpere).prefill == AttentionKernel::kLatent);  // 156 KiB
  CHECK(choose(false, DType::kBF16, kAmpere).decode == AttentionKernel::kPlain);    // 174 KiB
  args.cache.dtype = DType::kF8E4M3;
  CHECK(choose(true).decode == AttentionKernel::kLatent);                           // 178 KiB
  CHECK(choose(false, DType::kBF16, kAmpere).prefill == AttentionKernel::kLatent);  // 158 KiB
  args.cache.head_dim = 568;  // no whole 16 bytes
  CHECK(choose(true).decode == AttentionKernel::kPlain);
  args.cache.dtype = DType::kBF16;
  args.cache.values = memory + 16;
  args.cache.head_dim = 128;
  CHECK(choose(false, DType::kBF16, kAda).prefill == AttentionKernel::kFlash);
  args.cache.head_dim = 64;
  CHECK(choose(true).prefill == AttentionKernel::kHopper);
  args.cache.page_tokens = 4;
  CHECK(choose(true).prefill == AttentionKernel::kFlash);
  args.cache.page_tokens = 256;
  CHECK(choose(true).prefill == AttentionKernel::kFlash);
  args.cache.page_tokens = 16;
  for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
    args.cache.dtype = cache;
    CHECK(choose(true).prefill == AttentionKernel::kHopperWide);
    CHECK(choose(true).prefill_rows == cuda::kHopperTileRows);
    CHECK(choose(true).decode == AttentionKernel::kFlash);
    CHECK(choose(false).prefill == AttentionKernel::kFlash);
  }
  args.cache.head_dim = 24;
  CHECK(choose(true).prefill == AttentionKernel::kPlain);
}

TEST_CASE("A long context is split and merged", "[cuda]") {
  CheckAttention({.batch = {{{1, 1000, 100}}, 16}}, DType::kBF16);
  CheckAttention({.batch = {{{1, 1000, 100}}, 16}, .sinks = true}, DType::kF32);
  CheckAttention({.batch = {{{4, 700}, {1, 130}}, 32}, .n_kv_heads = 1, .sinks = true},
                 DType::kBF16);
}

TEST_CASE("Strided rows and threads in any order change nothing", "[cuda]") {
  CheckAttention({.batch = Mixed(), .pad = 2}, DType::kBF16);
  CheckAttention({.batch = Mixed(), .pad = 3}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  CheckAttention({.batch = Mixed()}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("A layer reads and writes the pages of its own group on CUDA", "[cuda]") {
  CheckLayerGroups(*EmulatedDevice(DType::kF32));
}

}  // namespace
}  // namespace heddle::kernels::test
