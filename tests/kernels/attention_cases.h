// Attention of one shape over one batch, and its check against the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

struct AttentionCase {
  BatchSpec batch;
  int32_t n_heads = 4;
  int32_t n_kv_heads = 2;
  int32_t head_dim = 64;
  DType dtype = DType::kF16;
  int32_t window = 0;
  float softcap = 0;
  bool sinks = false;
  bool in_order = false;
  bool both_ways = false;
  bool in_chunks = false;
  bool bias = false;
  std::vector<float> inv_freq = {};  // AttentionArgs::rotation
  RopeLayout layout = RopeLayout::kHalf;
};

struct AttentionResult {
  Matrix out;
  Matrix lse;
};

inline AttentionResult Attend(Device& device, const AttentionCase& c, const TestBatch& batch,
                              const TestCache& cache, Matrix& q, const std::vector<float>& sinks) {
  AttentionResult result{Matrix(q.num_rows(), q.num_cols(), 2), Matrix(q.num_rows(), c.n_heads)};
  constexpr int32_t kReach = 704;
  Random bias_random(5);
  const std::vector<float> biases =
      bias_random.Normals(c.n_heads * DistanceBias{nullptr, kReach}.stride());
  REQUIRE(device.Plan(batch.view()).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                AttentionArgs args;
                args.q = q.tensor();
                args.n_heads = c.n_heads;
                args.cache = cache.view;
                args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
                args.window = c.window;
                args.in_order = c.in_order;
                args.both_ways = c.both_ways;
                args.in_chunks = c.in_chunks;
                if (c.bias) args.bias = {biases.data(), kReach};
                const QueryRotation rotation = {c.inv_freq, c.layout};
                args.rotation = c.inv_freq.empty() ? nullptr : &rotation;
                args.softcap = c.softcap;
                args.sinks = c.sinks ? sinks.data() : nullptr;
                args.out = result.out.tensor();
                args.lse = result.lse.at(0, 0);
                ops.Attention(args);
              })
              .ok());
  return result;
}

// Scores of head_dim terms of unit variance err by some 4 sqrt(head_dim) units, and exp turns that
// into a relative error of the weights; sums over the context add their own roundings. Values are
// of unit size (largest among thousands: about 4).
// Where the level multiplies BF16 itself, queries and weights are rounded to 8 bits: a score of
// unit variance is a sum of products each off by 2^-9 at most, so off by 4 * 2^-9 beyond any
// chance, and with it the weight, whose own rounding adds 2^-9. Caches in F32 and F16 stay exact.
inline double AttentionTolerance(const AttentionCase& c, const std::string& isa) {
  int32_t longest = 0;
  for (const auto& sequence : c.batch.sequences) longest = std::max(longest, sequence.context);
  double terms =
      std::sqrt(static_cast<double>(c.head_dim)) + std::sqrt(static_cast<double>(longest));
  const bool dots = MultipliesBf16(isa) && c.dtype != DType::kF32 && c.dtype != DType::kF16;
  return 4 * 4 * terms * 1.2e-7 + (dots ? 4 * 5 * 0x1p-9 : 0.0);
}

inline void CheckBatch(const AttentionCase& c, const TestBatch& batch, uint32_t seed) {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  TestCache cache(c.dtype, batch.num_pages, c.batch.page_tokens, c.n_kv_heads, c.head_dim, seed);
  Random random(seed);
  Matrix q = Matrix::RandomOf(random, static_cast<int64_t>(batch.token_ids.size()),
                              int64_t{c.n_heads} * c.head_dim, /*pad=*/3, /*shift=*/1);
  std::vector<float> sinks = random.Normals(c.n_heads);
  AttentionResult expected = Attend(*reference, c, batch, cache, q, sinks);
  for (int32_t threads : {1, 3}) {
    for (auto& [name, device] : CpuDevices(threads)) {
      INFO(name << " head_dim " << c.head_dim << " heads " << c.n_heads << "/" << c.n_kv_heads
                << " " << Info(c.dtype).name << " window " << c.window << " softcap " << c.softcap
                << " seed " << seed << " threads " << threads);
      AttentionResult found = Attend(*device, c, batch, cache, q, sinks);
      CHECK(found.out.GapsIntact());
      double worst = 0, worst_lse = 0;
      for (int64_t t = 0; t < q.num_rows(); ++t) {
        for (int64_t i = 0; i < q.num_cols(); ++i) {
          worst = std::max<double>(worst, std::fabs(found.out(t, i) - expected.out(t, i)));
        }
        for (int32_t h = 0; h < c.n_heads; ++h) {
          worst_lse = std::max<double>(worst_lse, std::fabs(found.lse(t, h) - expected.lse(t, h)));
        }
      }
      CHECK(worst <= AttentionTolerance(c, name));
      CHECK(worst_lse <= AttentionTolerance(c, name));
    }
  }
}

inline void CheckCase(const AttentionCase& c, uint32_t seed) {
  CheckBatch(c, TestBatch(c.batch, seed), seed);
}

}  // namespace heddle::kernels::test
