// Attention on the emulated CUDA device, every kernel it can choose, against the reference.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/emulate/emulator.h"
#include "kernels/cuda/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/layer_groups.h"

namespace heddle::kernels::test {
namespace {

struct Case {
  BatchSpec batch;
  int32_t n_heads = 4;
  int32_t n_kv_heads = 2;
  int32_t head_dim = 64;
  DType cache = DType::kF16;
  int32_t window = 0;
  float softcap = 0;
  bool sinks = false;
  int64_t pad = 0;
  int32_t compute_major = 9;  // prompts on warpgroups; 8: on warps
  bool poisoned = false;      // what no sequence holds of the cache is NaN
};

struct Result {
  Matrix out;
  Matrix lse;
};

Result Attend(Device& device, DType act, const Case& c, const TestBatch& batch,
              const TestCache& cache, Matrix q, const std::vector<float>& sinks, int64_t pad) {
  Result result{Matrix(q.num_rows(), q.num_cols()), Matrix(q.num_rows(), c.n_heads)};
  Activations q_device(act, q, pad);
  Activations out(act, result.out, pad);
  REQUIRE(device.Plan(batch.view()).ok());
  AttentionArgs args;
  args.q = q_device.tensor();
  args.n_heads = c.n_heads;
  args.cache = cache.view;
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  args.window = c.window;
  args.softcap = c.softcap;
  args.sinks = c.sinks ? sinks.data() : nullptr;
  args.out = out.tensor();
  args.lse = result.lse.at(0, 0);
  MustRun(device, [&](Ops& ops) { ops.Attention(args); });
  CHECK(out.GapsIntact());
  for (int64_t t = 0; t < q.num_rows(); ++t) {
    for (int64_t i = 0; i < q.num_cols(); ++i) *result.out.at(t, i) = out(t, i);
  }
  return result;
}

// Largest |value| in the cache: bounds every output, and what rounding the weights may cost.
constexpr double kLargestValue = 5;

// Scores err by roundings of head_dim products of unit size; weights by that and by their own
// rounding to the cache's type on their way to the matrix instruction; outputs by their type's.
double Tolerance(const Case& c, DType act, double expected) {
  double scores = 4 * std::sqrt(static_cast<double>(c.head_dim)) * 0x1p-23;
  const bool halves = c.cache == DType::kF16 || c.cache == DType::kF8E4M3;
  double weights = act == DType::kF32 ? 0 : halves ? 0x1p-11 : 0x1p-8;
  return kLargestValue * (2 * scores + 1e-5 + weights) + RoundingOf(act, expected);
}

// Of a cache of 16-bit floats, all positions that no span counts become NaN.
void PoisonRest(const TestBatch& batch, TestCache& cache) {
  const KvCacheView& view = cache.view;
  std::vector<bool> used(static_cast<size_t>(view.num_pages) * view.page_tokens, false);
  for (size_t i = 0; i < batch.span_page.size(); ++i) {
    for (int32_t j = 0; j < batch.span_tokens[i]; ++j) {
      used[static_cast<size_t>(batch.span_page[i] * view.page_tokens + j)] = true;
    }
  }
  const int64_t row_bytes = 2 * int64_t{view.head_dim};
  for (auto* storage : {&cache.keys, &cache.values}) {
    for (size_t slot = 0; slot < used.size(); ++slot) {
      for (int32_t head = 0; head < view.n_kv_heads && !used[slot]; ++head) {
        const auto page = static_cast<int64_t>(slot) / view.page_tokens;
        const auto at = static_cast<int64_t>(slot) % view.page_tokens;
        uint8_t* row = storage->data() + page * view.page_bytes() + head * view.head_bytes();
        std::fill_n(row + at * row_bytes, row_bytes, uint8_t{0xFF});
      }
    }
  }
}

void Check(const Case& c, DType act, uint32_t seed = 1) {
  TestBatch batch(c.batch, seed);
  TestCache cache(c.cache, batch.num_pages, c.batch.page_tokens, c.n_kv_heads, c.head_dim, seed);
  if (c.poisoned) PoisonRest(batch, cache);
  cuda::emulate::SetMachine({.compute_major = c.compute_major});
  Random random(seed);
  Matrix q = Matrix::RandomOf(random, static_cast<int64_t>(batch.token_ids.size()),
                              int64_t{c.n_heads} * c.head_dim);
  { Activations rounded(act, q); }
  std::vector<float> sinks = random.Normals(c.n_heads);
  auto reference = CreateReferenceDevice();
  Result expected = Attend(*reference, DType::kF32, c, batch, cache, q, sinks, 0);
  auto device = EmulatedDevice(act);
  Result found = Attend(*device, act, c, batch, cache, q, sinks, c.pad);
  cuda::emulate::SetMachine({});
  INFO(Info(act).name << " head_dim " << c.head_dim << " heads " << c.n_heads << "/" << c.n_kv_heads
                      << " " << Info(c.cache).name << " window " << c.window << " softcap "
                      << c.softcap << " sinks " << c.sinks << " major " << c.compute_major
                      << " page " << c.batch.page_tokens << " seqs " << c.batch.sequences.size()
                      << " first context " << c.batch.sequences[0].context);
  double worst = 0, worst_lse = 0;
  for (int64_t t = 0; t < q.num_rows(); ++t) {
    for (int64_t i = 0; i < q.num_cols(); ++i) {
      double error = std::fabs(static_cast<double>(found.out(t, i)) - expected.out(t, i));
      worst = std::max(worst, error / Tolerance(c, act, expected.out(t, i)));
    }
    for (int64_t h = 0; h < c.n_heads; ++h) {
      double error = std::fabs(static_cast<double>(found.lse(t, h)) - expected.lse(t, h));
      worst_lse = std::max(worst_lse, error / (1e-4 + 1e-6 * std::fabs(expected.lse(t, h))));
    }
  }
  CHECK(worst <= 1);
  CHECK(worst_lse <= 1);
}

BatchSpec Mixed() {
  return {{{1, 1}, {1, 77}, {5, 5}, {37, 90, 9}, {1, 200, 20}, {3, 131, 5}}, 16};
}

TEST_CASE("Mixed prompts and decodes match the reference in every cache type", "[cuda]") {
  for (DType cache : {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kInt8}) {
    Check({.batch = Mixed(), .cache = cache}, DType::kBF16);
    Check({.batch = Mixed(), .cache = cache, .compute_major = 8}, DType::kBF16);
    Check({.batch = Mixed(), .cache = cache}, DType::kF32);
  }
}

TEST_CASE("Every head size takes its kernel", "[cuda]") {
  const BatchSpec batch = {{{1, 150}, {20, 70}}, 8};
  for (int32_t head_dim : {8, 16, 48, 64, 80, 96, 128, 256}) {
    for (int32_t major : {8, 9}) {
      Check({.batch = batch,
             .n_heads = 2,
             .n_kv_heads = 1,
             .head_dim = head_dim,
             .compute_major = major},
            DType::kBF16);
    }
  }
  for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
    for (int32_t head_dim : {16, 48, 64, 80, 128, 256}) {
      Check({.batch = batch, .n_heads = 2, .n_kv_heads = 1, .head_dim = head_dim, .cache = cache},
            DType::kBF16);
    }
    for (int32_t head_dim : {7, 24}) {  // not for matrix instructions
      Check({.batch = batch, .n_heads = 2, .n_kv_heads = 1, .head_dim = head_dim, .cache = cache},
            DType::kBF16);
    }
  }
  for (int32_t head_dim : {12, 264}) {  // not for matrix instructions
    Check({.batch = batch, .n_heads = 2, .n_kv_heads = 1, .head_dim = head_dim}, DType::kBF16);
  }
}

TEST_CASE("Any grouping of heads is packed and unpacked rightly", "[cuda]") {
  const BatchSpec batch = {{{1, 140}, {2, 30}, {30, 61}}, 16};
  for (auto [heads, kv_heads] : {std::pair{1, 1}, {4, 4}, {6, 2}, {7, 1}, {16, 1}, {20, 1}}) {
    Check({.batch = batch, .n_heads = heads, .n_kv_heads = kv_heads, .head_dim = 32}, DType::kBF16);
  }
}

TEST_CASE("Windows, soft caps and sinks match the reference, in prompts and over splits",
          "[cuda]") {
  for (DType act : {DType::kBF16, DType::kF32}) {
    for (int32_t window : {1, 7, 64, 100}) {
      Check({.batch = Mixed(), .window = window, .sinks = window == 7}, act);
    }
    Check({.batch = Mixed(), .softcap = 5}, act);
    Check({.batch = Mixed(), .sinks = true}, act);
    Check({.batch = Mixed(), .window = 50, .softcap = 2, .sinks = true}, act);
    for (DType cache : {DType::kF8E4M3, DType::kInt8}) {
      Check({.batch = Mixed(), .cache = cache, .window = 50, .softcap = 2, .sinks = true}, act);
    }
  }
}

// More tiles than multiprocessors, tiles of one row more or less, stages of one key more or less.
BatchSpec Prompts(int32_t page_tokens) {
  return {{{150, 150}, {65, 193, 50}, {17, 128}, {64, 65}, {128, 513, 300}, {1, 40}}, page_tokens};
}

TEST_CASE("Prompts on warpgroups match the reference on pages of any size", "[cuda][hopper]") {
  for (int32_t page_tokens : {8, 16, 64, 128}) {
    for (DType cache : {DType::kF16, DType::kBF16}) {
      Check({.batch = Prompts(page_tokens),
             .n_kv_heads = page_tokens == 16 ? 1 : 2,
             .head_dim = cache == DType::kF16 ? 64 : 128,
             .cache = cache,
             .poisoned = true},
            DType::kBF16);
    }
  }
  Check({.batch = Prompts(4), .n_kv_heads = 2}, DType::kBF16);  // too small: on warps
}

TEST_CASE("Prompts on warpgroups keep windows, soft caps, sinks and groups", "[cuda][hopper]") {
  const BatchSpec batch = {{{100, 333, 129}, {70, 70}}, 32};
  for (int32_t window : {1, 50, 128, 200}) {
    Check({.batch = batch, .window = window, .sinks = window == 50, .poisoned = true},
          DType::kBF16);
  }
  Check({.batch = batch, .softcap = 5, .poisoned = true}, DType::kBF16);
  Check({.batch = batch, .head_dim = 128, .window = 90, .softcap = 2, .sinks = true}, DType::kBF16);
  for (auto [heads, kv_heads] : {std::pair{1, 1}, {6, 2}, {7, 1}}) {
    Check({.batch = {{{90, 190}}, 16}, .n_heads = heads, .n_kv_heads = kv_heads}, DType::kBF16);
  }
  Check({.batch = batch, .pad = 8}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  Check({.batch = batch, .head_dim = 128, .poisoned = true}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("Each kind of attention takes the kernel of its row in the table", "[cuda][hopper]") {
  using cuda::AttentionKernel;
  AttentionArgs args;
  args.scale = 1;
  args.cache = {
      .dtype = DType::kBF16, .num_pages = 9, .page_tokens = 16, .n_kv_heads = 1, .head_dim = 128};
  auto choose = [&](bool hopper, DType act = DType::kBF16) {
    return cuda::ChooseAttention(args, act, hopper);
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
  args.cache.head_dim = 64;
  CHECK(choose(true).prefill == AttentionKernel::kHopper);
  args.cache.page_tokens = 4;
  CHECK(choose(true).prefill == AttentionKernel::kFlash);
  args.cache.page_tokens = 256;
  CHECK(choose(true).prefill == AttentionKernel::kFlash);
  args.cache.page_tokens = 16;
  args.cache.dtype = DType::kF8E4M3;
  CHECK(choose(true).prefill == AttentionKernel::kFlash);
  args.cache.head_dim = 24;
  CHECK(choose(true).prefill == AttentionKernel::kPlain);
}

TEST_CASE("A long context is split and merged", "[cuda]") {
  Check({.batch = {{{1, 1000, 100}}, 16}}, DType::kBF16);
  Check({.batch = {{{1, 1000, 100}}, 16}, .sinks = true}, DType::kF32);
  Check({.batch = {{{4, 700}, {1, 130}}, 32}, .n_kv_heads = 1, .sinks = true}, DType::kBF16);
}

TEST_CASE("Strided rows and threads in any order change nothing", "[cuda]") {
  Check({.batch = Mixed(), .pad = 2}, DType::kBF16);
  Check({.batch = Mixed(), .pad = 3}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  Check({.batch = Mixed()}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("A plan covers every packed row and key once, within its slots", "[cuda]") {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    BatchSpec spec;
    for (int s = 0; s <= random.Below(5); ++s) {
      int32_t rows = random.Below(3) > 0 ? 1 : 1 + random.Below(100);
      spec.sequences.push_back({rows, rows + random.Below(3000)});
    }
    TestBatch batch(spec, static_cast<uint32_t>(round));
    const cuda::AttentionGrouping grouping = {
        .group = 1 + random.Below(20),
        .n_kv_heads = 1 + random.Below(4),
        .prefill_rows = random.Below(2) == 0 ? cuda::kPrefillTileRows : cuda::kHopperTileRows};
    const int32_t max_slots = random.Below(2) == 0 ? 8 : 1000;
    auto plan = cuda::PlanAttention(batch.view(), {0, batch.view().n_seqs()}, grouping,
                                    1 + random.Below(264), max_slots);
    CHECK(plan.n_slots <= max_slots);
    std::vector<int32_t> slot_uses(plan.n_slots, 0);
    for (size_t s = 0; s < spec.sequences.size(); ++s) {
      const int32_t packed = spec.sequences[s].rows * grouping.group;
      std::vector<int64_t> keys(packed, 0);  // of each packed row
      auto cover = [&](const cuda::AttentionTile& tile, int32_t rows) {
        if (tile.seq != static_cast<int32_t>(s)) return;
        for (int32_t p = tile.first; p < std::min(packed, tile.first + rows); ++p) {
          keys[p] += tile.key_end - tile.key_begin;
        }
        if (tile.slot >= 0) ++slot_uses[tile.slot];
      };
      for (const auto& tile : plan.decode) cover(tile, cuda::kDecodeTileRows);
      for (const auto& tile : plan.prefill) cover(tile, grouping.prefill_rows);
      for (int64_t count : keys) CHECK(count == spec.sequences[s].context);
    }
    for (int32_t uses : slot_uses) CHECK(uses == 1);
    int32_t next = 0;
    for (const auto& merge : plan.merges) {
      CHECK(merge.slot_begin == next);
      next += merge.num_slots;
    }
    CHECK(next == plan.n_slots);
  }
}

TEST_CASE("A layer reads and writes the pages of its own group on CUDA", "[cuda]") {
  CheckLayerGroups(*EmulatedDevice(DType::kF32));
}

}  // namespace
}  // namespace heddle::kernels::test
