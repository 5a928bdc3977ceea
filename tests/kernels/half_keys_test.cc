// Queries that meet half of each key (AttentionArgs::half_keys) have the very bits of whole queries
// with zeros in the other half, on every level and in the reference: with windows, trees, all types
// of the cache, odd sizes, and contexts that threads share.
#include <cmath>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

struct HalvesCase {
  BatchSpec batch;
  int32_t n_heads;
  int32_t n_kv_heads;
  int32_t key_dim;  // of a whole key
  DType dtype = DType::kF32;
  int32_t window = 0;
  bool tree = false;
};

Matrix Attend(Device& device, const HalvesCase& c, const TestBatch& batch, const TestCache& cache,
              const Matrix& q, bool half_keys) {
  Matrix in = q;
  Matrix out(q.num_rows(), int64_t{c.n_heads} * c.key_dim, /*pad=*/2);
  REQUIRE(device.Plan(batch.view()).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                ops.Attention({.q = in.tensor(),
                               .n_heads = c.n_heads,
                               .half_keys = half_keys,
                               .cache = cache.view,
                               .scale = 1.0f / std::sqrt(static_cast<float>(c.key_dim) / 2),
                               .window = c.window,
                               .out = out.tensor()});
              })
              .ok());
  CHECK(out.GapsIntact());
  return out;
}

// Even heads have their elements in front of as many zeros, odd ones behind them.
Matrix WholeQueries(const HalvesCase& c, const Matrix& halves) {
  const int64_t half = c.key_dim / 2;
  Matrix whole(halves.num_rows(), int64_t{c.n_heads} * c.key_dim, /*pad=*/1);
  for (int64_t t = 0; t < halves.num_rows(); ++t) {
    for (int64_t h = 0; h < c.n_heads; ++h) {
      for (int64_t i = 0; i < c.key_dim; ++i) {
        const bool is_own = (i < half) == (h % 2 == 0);
        *whole.at(t, h * c.key_dim + i) = is_own ? halves(t, h * half + i % half) : 0.0f;
      }
    }
  }
  return whole;
}

bool AreSame(const Matrix& a, const Matrix& b) {
  for (int64_t t = 0; t < a.num_rows(); ++t) {
    for (int64_t i = 0; i < a.num_cols(); ++i) {
      if (!(a(t, i) == b(t, i))) return false;
    }
  }
  return true;
}

void CheckCase(const HalvesCase& c, uint32_t seed) {
  TestBatch batch(c.batch, seed);
  Random random(seed);
  if (c.tree) GrowTrees(random, {0}, &batch);
  const TestCache cache(c.dtype, batch.num_pages, c.batch.page_tokens, c.n_kv_heads, c.key_dim,
                        seed);
  const Matrix halves =
      Matrix::RandomOf(random, static_cast<int64_t>(batch.token_ids.size()),
                       int64_t{c.n_heads} * c.key_dim / 2, /*pad=*/3, /*shift=*/1);
  const Matrix whole = WholeQueries(c, halves);
  const auto check = [&](const std::string& name, Device& device) {
    INFO(name << ", " << c.n_heads << "/" << c.n_kv_heads << " heads of " << c.key_dim << ", "
              << Info(c.dtype).name << ", window " << c.window << ", seed " << seed);
    CHECK(AreSame(Attend(device, c, batch, cache, halves, /*half_keys=*/true),
                  Attend(device, c, batch, cache, whole, /*half_keys=*/false)));
  };
  check("reference", *CreateReferenceDevice());
  for (const int32_t threads : {1, 3}) {
    for (auto& [name, device] : CpuDevices(threads)) check(name, *device);
  }
}

TEST_CASE("Half of a key is what a query with zeros in the other half meets", "[kernels][kernel]") {
  const BatchSpec mixed{{{5, 5}, {1, 1}, {1, 33}, {1, 600}, {40, 75}, {3, 1030}}};
  uint32_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
    for (const auto& [heads, kv_heads, dim] :
         {std::tuple(2, 1, 2), std::tuple(6, 1, 20), std::tuple(10, 5, 8), std::tuple(8, 2, 128)}) {
      for (const int32_t window : {0, 9})
        CheckCase({mixed, heads, kv_heads, dim, dtype, window}, ++seed);
    }
  }
}

TEST_CASE("Rows of a tree meet halves of their ancestors' keys", "[kernels][kernel]") {
  const BatchSpec drafts{{{16, 75}, {1, 600}}};
  CheckCase({drafts, 6, 1, 24, DType::kBF16, 0, /*tree=*/true}, 90);
}

}  // namespace
}  // namespace heddle::kernels::test
