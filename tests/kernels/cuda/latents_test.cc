// Attention over latents with its projections, on the emulated CUDA device: long chunks of prompts,
// whose keys and values are made of the latents, against the reference, which has latents alone.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/nano_batch.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kRotated = 64, kNope = 128, kValue = 128;

struct LatentCase {
  std::vector<BatchSpec::Sequence> sequences;
  std::vector<bool> expanded;  // by sequence
  int32_t n_heads = 2;
  int32_t rank = 64;
  DType cache = DType::kBF16;
  DType weight = DType::kBF16;
  int64_t workspace_bytes = int64_t{4} << 20;
  bool splits = false;  // on the device the step runs as two halves
  bool sharpens = false;
};

struct Stack {
  std::vector<TestWeight> weights;
  Stack(Random& random, DType dtype, int32_t count, int64_t rows, int64_t cols) {
    weights.reserve(static_cast<size_t>(count));
    for (int32_t h = 0; h < count; ++h) weights.push_back(MakeWeight(random, dtype, rows, cols));
  }
  std::unique_ptr<PackedStack> Pack(Device& device) const {
    std::vector<WeightSource> sources;
    sources.reserve(weights.size());
    for (const TestWeight& weight : weights) sources.push_back(weight.source());
    return *device.PackStack(sources, static_cast<int32_t>(sources.size()));
  }
};

struct LatentResult {
  Matrix values;
  std::vector<bool> is_expanded;  // by row: attention.out holds the values themselves
};

// Absorbs, rotates, writes the cache and attends, as a decoder's layer does.
LatentResult Attend(Device& device, const LatentCase& c, DType act) {
  Random random(static_cast<uint32_t>(c.rank));
  const TestBatch batch({c.sequences, 16});
  const auto n = static_cast<int64_t>(batch.token_ids.size());
  const int32_t dim = kRotated + c.rank, query_dim = kNope + kRotated;
  const Stack key_weights(random, c.weight, c.n_heads, c.rank, kNope);
  const Stack value_weights(random, c.weight, c.n_heads, kValue, c.rank);
  const auto key_heads = key_weights.Pack(device), value_heads = value_weights.Pack(device);
  Matrix heads = Matrix::RandomOf(random, n, int64_t{c.n_heads} * query_dim);
  Matrix rows = Matrix::RandomOf(random, n, dim);
  Matrix zeros(n, int64_t{c.n_heads} * dim), zero_values(n, int64_t{c.n_heads} * kValue);
  { Activations rounded(DType::kBF16, heads), also(DType::kBF16, rows); }
  Activations x(act, heads), row(act, rows), q(act, zeros), out(act, zeros);
  Activations values(act, zero_values);
  TestCache cache(c.cache, batch.num_pages, 16, 1, dim, /*seed=*/1);
  cache.view.values = cache.view.keys;
  std::vector<float> inv_freq, cos_sin(static_cast<size_t>(n * kRotated));
  for (int i = 0; i < kRotated / 2; ++i) inv_freq.push_back(std::pow(100.0f, -i / 32.0f));
  const HeadLinearArgs absorbing = {.x = x.tensor(),
                                    .x_step = query_dim,
                                    .heads = key_heads.get(),
                                    .carried = kRotated,
                                    .out = q.tensor(),
                                    .out_step = dim};
  Tensor latents = out.tensor();
  latents.data = static_cast<uint8_t*>(latents.data) + kRotated * Info(act).block_bytes;
  REQUIRE(device.Plan(batch.view()).ok());
  MustRun(device, [&](Ops& ops) {
    ops.RopeAngles({.inv_freq = inv_freq, .cos_sin = cos_sin.data()});
    if (c.sharpens) ops.Sharpen({x.tensor(), 0.4f, 40, 1});
    ops.HeadLinear(absorbing);
    ops.RopeKvWrite({.q = q.tensor(),
                     .k = row.tensor(),
                     .n_heads = c.n_heads,
                     .cos_sin = cos_sin.data(),
                     .rotary_dim = kRotated,
                     .cache = cache.view});
    ops.AttendLatents({.attention = {.q = q.tensor(),
                                     .n_heads = c.n_heads,
                                     .cache = cache.view,
                                     .scale = 0.5f / std::sqrt(static_cast<float>(query_dim)),
                                     .out = out.tensor()},
                       .queries = absorbing,
                       .values = {.x = latents,
                                  .x_step = dim,
                                  .heads = value_heads.get(),
                                  .out = values.tensor(),
                                  .out_step = kValue}});
  });
  LatentResult result = {Matrix(n, values.tensor().cols), {}};
  for (int64_t t = 0; t < n; ++t) {
    bool same = true;
    for (int64_t i = 0; i < values.tensor().cols; ++i) {
      *result.values.at(t, i) = values(t, i);
      same = same && out(t, i) == values(t, i);
    }
    result.is_expanded.push_back(same);
  }
  return result;
}

// Keys, values and weights are rounded to BF16 in one form, queries and sums over latents in the
// other: some roundings of numbers as large as the largest value.
void CheckLatents(const LatentCase& c) {
  INFO("cache " << Info(c.cache).name << ", weights " << Info(c.weight).name << ", rank "
                << c.rank);
  const LatentResult expected = Attend(*CreateReferenceDevice(), c, DType::kF32);
  const auto device = EmulatedDevice(DType::kBF16, c.workspace_bytes);
  if (c.splits) {
    REQUIRE(device->SetNanoBatches({.device_name = {}, .rules = {NanoBatchRule{}}}).ok());
  }
  const LatentResult found = Attend(*device, c, DType::kBF16);
  double largest = 0, worst = 0;
  for (int64_t t = 0; t < expected.values.num_rows(); ++t) {
    for (int64_t i = 0; i < expected.values.num_cols(); ++i) {
      const double value = expected.values(t, i);
      largest = std::max(largest, std::fabs(value));
      const double error = std::fabs(found.values(t, i) - value);
      worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
    }
  }
  CHECK(worst <= 8 * RoundingOf(DType::kBF16, largest));
  size_t row = 0;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    for (int32_t i = 0; i < c.sequences[s].rows; ++i, ++row) {
      if (found.is_expanded[row] != c.expanded[s]) FAIL("row " << row << " of sequence " << s);
    }
  }
}

TEST_CASE("Long chunks make keys and values of latents, beside rows that do not", "[cuda]") {
  CheckLatents({.sequences = {{1, 50}, {300, 340}, {20, 60}, {3, 3}},
                .expanded = {false, true, false, false}});
}

TEST_CASE("Both halves of a step make keys and values of latents", "[cuda]") {
  CheckLatents({.sequences = {{1, 50}, {290, 330}, {270, 290}, {9, 60}},
                .expanded = {false, true, true, false},
                .n_heads = 1,
                .splits = true});
}

TEST_CASE("Queries that were sharpened meet keys of latents, too", "[cuda]") {
  CheckLatents({.sequences = {{260, 300}, {2, 90}},
                .expanded = {true, false},
                .n_heads = 1,
                .sharpens = true});
}

TEST_CASE("Keys and values of latents are split along long contexts", "[cuda]") {
  CheckLatents({.sequences = {{400, 1000}}, .expanded = {true}, .n_heads = 1, .rank = 72});
}

TEST_CASE("Keys and values are made of latents for as many heads at a time as fit", "[cuda]") {
  CheckLatents({.sequences = {{300, 300}, {1, 9}},
                .expanded = {true, false},
                .n_heads = 3,
                .cache = DType::kInt8,
                .weight = DType::kQ8_0,
                .workspace_bytes = int64_t{5} << 18});
}

TEST_CASE("Pages of 8 bits and pages that are not full become keys and values", "[cuda]") {
  CheckLatents({.sequences = {{270, 290, 21}, {260, 260}},
                .expanded = {true, true},
                .n_heads = 1,
                .cache = DType::kF8E4M3});
}

TEST_CASE("Chunks that see a long context for few rows stay with the latents", "[cuda]") {
  CheckLatents({.sequences = {{256, 900}}, .expanded = {false}, .n_heads = 1});
}

}  // namespace
}  // namespace heddle::kernels::test
