// Attention over chosen positions on the emulated CUDA device: what indexers choose, equal to the
// reference, and attention over lists.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/selection_cases.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kPageTokens = 16;

struct IndexerCase {
  int32_t n_heads = 3;
  int32_t head_dim = 40;
  DType cache = DType::kBF16;
  int32_t top_k = 19;
};

// Texts that need no choice, decodes, a chunk that begins to choose in its middle, pages that end
// early.
const BatchSpec kMixed{
    {{5, 5}, {1, 1}, {1, 33}, {1, 600, 21}, {40, 45}, {3, 1130}, {1, 19}, {33, 80}}, kPageTokens};

std::vector<int32_t> Select(Device& device, const IndexerCase& c, const HostBatch& batch,
                            const TestCache& cache, Matrix q, Matrix weights) {
  Activations queries(device.activation_dtype(), q, /*pad=*/8 * (c.n_heads % 2));
  Activations factors(DType::kF32, weights, /*pad=*/1);
  std::vector<int32_t> out(static_cast<size_t>(batch.n_tokens() * (1 + c.top_k)), kUnwritten);
  REQUIRE(device.Plan(batch).ok());
  MustRun(device, [&](Ops& ops) {
    CHECK(ops.SeesMoreThan(0, c.top_k));
    ops.SelectPositions({.q = queries.tensor(),
                         .weights = factors.tensor(),
                         .n_heads = c.n_heads,
                         .cache = cache.view,
                         .top_k = c.top_k,
                         .out = out.data()});
  });
  return out;
}

void CheckChoice(const IndexerCase& c, DType act, const TestBatch& batch,
                 int64_t workspace_bytes = int64_t{4} << 20) {
  INFO(c.n_heads << " heads of " << c.head_dim << ", cache " << Info(c.cache).name << ", "
                 << Info(act).name << ", " << c.top_k << " of each, workspace " << workspace_bytes);
  Random random(static_cast<uint32_t>(c.head_dim));
  TestCache cache = KeysAlone(c.cache, batch, kPageTokens, c.head_dim);
  FillWithIntegers(random, batch, &cache);
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  const Matrix q = Integers(random, rows, int64_t{c.n_heads} * c.head_dim, 0);
  const Matrix weights = Integers(random, rows, c.n_heads, 0);
  const auto expected = Select(*CreateReferenceDevice(), c, batch.view(), cache, q, weights);
  const auto found =
      Select(*EmulatedDevice(act, workspace_bytes), c, batch.view(), cache, q, weights);
  CHECK(found == expected);
}

TEST_CASE("Indexers choose the reference's positions, of equal ones the earlier", "[cuda]") {
  for (const bool has_trees : {false, true}) {
    TestBatch batch(kMixed);
    Random random(3);
    if (has_trees) GrowTrees(random, {0, 4, 5}, &batch);
    for (const DType cache : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF32}) {
      CheckChoice({7, 40, cache}, DType::kBF16, batch);
    }
    CheckChoice({1, 17, DType::kBF16}, DType::kBF16, batch);
    CheckChoice({3, 8, DType::kF32}, DType::kF32, batch);
    CheckChoice({19, 128, DType::kBF16, 500}, DType::kBF16, batch);
  }
}

TEST_CASE("Indexers of more heads than a block keeps are scored one key a thread", "[cuda]") {
  CheckChoice({1000, 8, DType::kBF16}, DType::kBF16, TestBatch({{{2, 60}}, kPageTokens}));
}

TEST_CASE("Indexers choose with as many rows at a time as scores fit", "[cuda]") {
  CheckChoice({2, 16, DType::kBF16}, DType::kBF16, TestBatch(kMixed), int64_t{6144} * 3);
}

// Blocks of 1,024 threads and of several turns of keys.
TEST_CASE("Indexers choose from long contexts", "[cuda]") {
  CheckChoice({2, 8, DType::kBF16, 700}, DType::kBF16, TestBatch({{{1, 6000, 77}}, kPageTokens}));
}

TEST_CASE("Scores that do not fit the workspace are an error of the step", "[cuda]") {
  const IndexerCase c{2, 16, DType::kBF16};
  const TestBatch batch({{{1, 1100}}, kPageTokens});
  const TestCache cache = KeysAlone(c.cache, batch, kPageTokens, c.head_dim);
  auto device = EmulatedDevice(DType::kBF16, 4096);
  Matrix zeros(1, 32), weights(1, 2);
  Activations q(DType::kBF16, zeros);
  std::vector<int32_t> out(20);
  REQUIRE(device->Plan(batch.view()).ok());
  const absl::Status status = device->Run([&](Ops& ops) {
    ops.SelectPositions({.q = q.tensor(),
                         .weights = weights.tensor(),
                         .n_heads = 2,
                         .cache = cache.view,
                         .top_k = 19,
                         .out = out.data()});
  });
  CHECK(absl::IsResourceExhausted(status));
  CHECK(std::string(status.message()).find("1100 positions") != std::string::npos);
}

TEST_CASE("A score that is no number is the last to be chosen on the device, too", "[cuda]") {
  const TestBatch batch({{{1, 40}}, kPageTokens});
  const std::vector<float> nan(16, std::numeric_limits<float>::quiet_NaN());
  for (const DType act : {DType::kF32, DType::kBF16}) {
    const IndexerCase c{2, 16, DType::kBF16};
    TestCache cache = KeysAlone(c.cache, batch, kPageTokens, c.head_dim);
    for (const int32_t place : {0, 17, 39}) {
      StoreKvRow(cache.view, cache.view.keys,
                 int64_t{batch.span_page[static_cast<size_t>(place / kPageTokens)]} * kPageTokens +
                     place % kPageTokens,
                 0, nan.data());
    }
    Random random(4);
    const Matrix q = Matrix::RandomOf(random, 1, 32), weights = Matrix::RandomOf(random, 1, 2);
    const auto list = Select(*EmulatedDevice(act), c, batch.view(), cache, q, weights);
    REQUIRE(list[0] == c.top_k);
    for (const int32_t place : {0, 17, 39}) {
      CHECK_FALSE(std::binary_search(list.begin() + 1, list.end(), place));
    }
  }
}

TEST_CASE("Keys with scales are scored with them", "[cuda]") {
  const TestBatch batch({{{1, 300}}, kPageTokens});
  const IndexerCase c{9, 24, DType::kInt8};
  const TestCache cache = KeysAlone(c.cache, batch, kPageTokens, c.head_dim);
  Random random(8);
  Matrix q = Matrix::RandomOf(random, 1, int64_t{c.n_heads} * c.head_dim);
  Activations rounded(DType::kBF16, q);
  const Matrix weights = Matrix::RandomOf(random, 1, c.n_heads);
  const auto expected = Select(*CreateReferenceDevice(), c, batch.view(), cache, q, weights);
  for (const DType act : {DType::kF32, DType::kBF16}) {
    const auto found = Select(*EmulatedDevice(act), c, batch.view(), cache, q, weights);
    // No two scores of these are as close as roundings are.
    CHECK(found == expected);
  }
}

struct ListCase {
  int32_t n_heads = 5;
  int32_t head_dim = 72;
  DType cache = DType::kBF16;
  int32_t top_k = 19;
};

// Attention over random lists, with the reference's results but for rounding.
void CheckLists(const ListCase& c, DType act, const TestBatch& batch) {
  INFO(c.n_heads << " heads of " << c.head_dim << ", cache " << Info(c.cache).name << ", "
                 << Info(act).name << ", lists of " << c.top_k);
  Random random(6);
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  const std::vector<int32_t> lists = RandomLists(random, batch, c.top_k);
  const TestCache cache = KeysAlone(c.cache, batch, kPageTokens, c.head_dim);
  Matrix q = Matrix::RandomOf(random, rows, int64_t{c.n_heads} * c.head_dim);
  { Activations rounded(act, q); }
  const auto attend = [&](Device& device) {
    const DType own = device.activation_dtype();
    Matrix zeros(rows, q.num_cols()), copy = q;
    Activations queries(own, copy), out(own, zeros, /*pad=*/2);
    REQUIRE(device.Plan(batch.view()).ok());
    MustRun(device, [&](Ops& ops) {
      ops.Attention({.q = queries.tensor(),
                     .n_heads = c.n_heads,
                     .cache = cache.view,
                     .scale = 0.1f,
                     .out = out.tensor(),
                     .chosen = {lists.data(), c.top_k}});
    });
    CHECK(out.GapsIntact());
    return out;
  };
  const Activations expected = attend(*CreateReferenceDevice());
  const Activations found = attend(*EmulatedDevice(act));
  double worst = 0;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < q.num_cols(); ++i) {
      const double error = std::fabs(found(t, i) - double{expected(t, i)});
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    }
  }
  // Weights are rounded to BF16 on their way to the matrix instruction, and outputs; values are up
  // to 5.
  CHECK(worst <= (act == DType::kF32 ? 3e-5 : 5 * 0x1p-8 + 5 * 0x1p-9));
}

TEST_CASE("Rows read their lists, and those without one all that they see", "[cuda]") {
  for (const bool has_trees : {false, true}) {
    TestBatch batch(kMixed);
    Random random(6);
    if (has_trees) GrowTrees(random, {5, 7}, &batch);  // as many places as a list has, and more
    for (const DType cache : {DType::kF32, DType::kBF16, DType::kInt8}) {
      CheckLists({5, 72, cache}, DType::kF32, batch);
    }
    CheckLists({5, 72, DType::kBF16}, DType::kBF16, batch);
    if (has_trees) continue;
    CheckLists({3, 48, DType::kF16}, DType::kBF16, batch);
    CheckLists({3, 48, DType::kF8E4M3}, DType::kBF16, batch);
    CheckLists({3, 48, DType::kInt8}, DType::kBF16, batch);
    CheckLists({40, 64, DType::kBF16}, DType::kBF16, batch);  // wide tiles for single rows
  }
}

TEST_CASE("Long lists are split and merged", "[cuda]") {
  const TestBatch batch({{{1, 700}, {2, 450, 99}, {1, 20}}, kPageTokens});
  CheckLists({5, 72, DType::kBF16, 400}, DType::kBF16, batch);
  CheckLists({19, 40, DType::kBF16, 400}, DType::kF32, batch);
  CheckLists({50, 64, DType::kBF16, 400}, DType::kBF16, batch);
}

// Steps have one size, so that their launches are one graph's with other parameters.
TEST_CASE("A replayed step chooses from the contexts that it has", "[cuda]") {
  const auto device = EmulatedDevice(DType::kBF16);
  const auto reference = CreateReferenceDevice();
  const IndexerCase c{2, 16, DType::kBF16};
  for (const int32_t context : {40, 41, 150, 42}) {
    const TestBatch batch({{{1, context}, {1, 7}}, kPageTokens});
    Random random(static_cast<uint32_t>(context));
    TestCache cache = KeysAlone(c.cache, batch, kPageTokens, c.head_dim);
    FillWithIntegers(random, batch, &cache);
    const Matrix q = Integers(random, 2, 32, 0), weights = Integers(random, 2, 2, 0);
    CHECK(Select(*device, c, batch.view(), cache, q, weights) ==
          Select(*reference, c, batch.view(), cache, q, weights));
  }
}

}  // namespace
}  // namespace heddle::kernels::test
