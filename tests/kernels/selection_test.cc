// Attention over chosen positions: what indexers choose on every level, equal to the reference, and
// attention over it, whose rows have the same bits alone, beside others and in any chunks.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/kv_element.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/selection_cases.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kTopK = 19;

struct Case {
  int32_t n_heads = 3;
  int32_t head_dim = 40;
  DType dtype = DType::kF32;
};

std::vector<int32_t> Select(Device& device, const Case& c, const TestBatch& batch,
                            const TestCache& cache, Tensor q, Tensor weights) {
  std::vector<int32_t> out(static_cast<size_t>(q.rows * (1 + kTopK)), kUnwritten);
  REQUIRE(device.Plan(batch.view()).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                CHECK(ops.SeesMoreThan(0, kTopK));
                ops.SelectPositions({.q = q,
                                     .weights = weights,
                                     .n_heads = c.n_heads,
                                     .cache = cache.view,
                                     .top_k = kTopK,
                                     .out = out.data()});
              })
              .ok());
  return out;
}

const BatchSpec kMixed{{{5, 5}, {1, 1}, {1, 33}, {1, 600, 21}, {40, 75}, {3, 1530}, {1, kTopK}},
                       16};

TEST_CASE("Indexers choose the best positions, of equal ones the earlier, at every level",
          "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (const bool has_trees : {false, true}) {
    TestBatch batch(kMixed);
    Random random(3);
    if (has_trees) GrowTrees(random, {0, 4, 5}, &batch);
    const auto rows = static_cast<int64_t>(batch.token_ids.size());
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
      for (const Case c : {Case{1, 8, dtype}, {3, 40, dtype}, {7, 17, dtype}, {64, 128, dtype}}) {
        TestCache cache = KeysAlone(dtype, batch, kMixed.page_tokens, c.head_dim);
        FillWithIntegers(random, batch, &cache);
        Matrix q = Integers(random, rows, int64_t{c.n_heads} * c.head_dim, 3);
        Matrix weights = Integers(random, rows, c.n_heads, 2);
        const std::vector<int32_t> expected =
            Select(*reference, c, batch, cache, q.tensor(), weights.tensor());
        for (const int32_t threads : {1, 3}) {
          for (auto& [name, device] : CpuDevices(threads)) {
            INFO(name << ", " << c.n_heads << " heads of " << c.head_dim << ", " << Info(dtype).name
                      << ", trees " << has_trees);
            CHECK(Select(*device, c, batch, cache, q.tensor(), weights.tensor()) == expected);
          }
        }
      }
    }
  }
}

// The places of a row's list, or all that it sees.
std::vector<int32_t> ListOf(const std::vector<int32_t>& chosen, int64_t t) {
  const int32_t* row = chosen.data() + t * (1 + kTopK);
  return {row + 1, row + 1 + std::max(0, *row)};
}

// The scores in double precision of row 0, which is the only one of the first sequence.
std::vector<double> ScoresOf(const Case& c, const TestBatch& batch, const TestCache& cache,
                             Matrix& q, Matrix& weights) {
  std::vector<double> scores;
  std::vector<float> key(static_cast<size_t>(c.head_dim));
  for (int32_t i = batch.span_begin[0]; i < batch.span_begin[1]; ++i) {
    for (int32_t j = 0; j < batch.span_tokens[static_cast<size_t>(i)]; ++j) {
      LoadKvRow(cache.view, cache.view.keys,
                int64_t{batch.span_page[static_cast<size_t>(i)]} * 16 + j, 0, key.data());
      double score = 0;
      for (int32_t h = 0; h < c.n_heads; ++h) {
        double dot = 0;
        for (int32_t d = 0; d < c.head_dim; ++d) {
          dot += double{q(0, h * c.head_dim + d)} * key[static_cast<size_t>(d)];
        }
        score += weights(0, h) * std::max(0.0, dot);
      }
      scores.push_back(score);
    }
  }
  return scores;
}

TEST_CASE("What indexers leave out scores less than what they choose, for every type of cache",
          "[kernels][kernel]") {
  const TestBatch batch(BatchSpec{{{1, 300}, {2, 90}}, 16});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
    const Case c{9, 27, dtype};
    const TestCache cache = KeysAlone(c.dtype, batch, 16, c.head_dim);
    Random random(8);
    Matrix q = Matrix::RandomOf(random, 3, int64_t{c.n_heads} * c.head_dim);
    for (int64_t i = 0; i < q.num_cols(); ++i) {  // BF16, to which a level may round
      uint32_t bits = std::bit_cast<uint32_t>(q(0, i)) & 0xffff0000u;
      *q.at(0, i) = std::bit_cast<float>(bits);
    }
    Matrix weights = Matrix::RandomOf(random, 3, c.n_heads);
    const std::vector<double> scores = ScoresOf(c, batch, cache, q, weights);
    for (auto& [name, device] : CpuDevices(2)) {
      INFO(name << " " << Info(dtype).name);
      const auto chosen = Select(*device, c, batch, cache, q.tensor(), weights.tensor());
      const std::vector<int32_t> list = ListOf(chosen, 0);
      REQUIRE(list.size() == kTopK);
      CHECK(std::is_sorted(list.begin(), list.end()));
      double least = std::numeric_limits<double>::infinity(), best = -least;
      for (size_t place = 0; place < scores.size(); ++place) {
        const auto p = static_cast<int32_t>(place);
        const bool is_in = std::binary_search(list.begin(), list.end(), p);
        if (is_in) least = std::min(least, scores[place]);
        if (!is_in) best = std::max(best, scores[place]);
      }
      // Sums of 9 * 27 products, each rounded twice.
      CHECK(best <= least + 1.2e-7 * 500 * std::fabs(least));
    }
  }
}

// Row t of the batch's sequence s, alone.
TestBatch AloneAt(const TestBatch& batch, int32_t s, int32_t t) {
  const int32_t behind = batch.q_begin[s + 1] - 1 - t;
  TestBatch alone = batch;
  alone.q_begin = {0, 1};
  alone.token_ids = {0};
  alone.positions = {batch.positions[t]};
  alone.kv_slot = {batch.kv_slot[t]};
  alone.logit_rows = {0};
  alone.context_len = {batch.context_len[s] - behind};
  alone.span_page.assign(batch.span_page.begin() + batch.span_begin[s],
                         batch.span_page.begin() + batch.span_begin[s + 1]);
  alone.span_tokens.assign(batch.span_tokens.begin() + batch.span_begin[s],
                           batch.span_tokens.begin() + batch.span_begin[s + 1]);
  for (int32_t left = behind; left > 0;) {
    const int32_t taken = std::min(left, alone.span_tokens.back());
    alone.span_tokens.back() -= taken;
    left -= taken;
    if (alone.span_tokens.back() > 0) continue;
    alone.span_tokens.pop_back();
    alone.span_page.pop_back();
  }
  alone.span_begin = {0, static_cast<int32_t>(alone.span_page.size())};
  return alone;
}

TEST_CASE("A row's choice is the same alone and beside others", "[kernels][kernel]") {
  const BatchSpec spec{{{1, 700}, {20, 300}, {1, 45}}, 16};
  const TestBatch batch(spec);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    const Case c{11, 33, dtype};
    const TestCache cache = KeysAlone(c.dtype, batch, spec.page_tokens, c.head_dim);
    Random random(12);
    Matrix q = Matrix::RandomOf(random, 22, int64_t{c.n_heads} * c.head_dim);
    Matrix weights = Matrix::RandomOf(random, 22, c.n_heads);
    for (auto& [name, device] : CpuDevices(2)) {
      INFO(name << " " << Info(dtype).name);
      const auto chosen = Select(*device, c, batch, cache, q.tensor(), weights.tensor());
      for (int32_t t = 1; t < 21; ++t) {
        const auto one = Select(*device, c, AloneAt(batch, 1, t), cache, q.rows(t, t + 1),
                                weights.rows(t, t + 1));
        CHECK(ListOf(one, 0) == ListOf(chosen, t));
      }
    }
  }
}

TEST_CASE("A score that is no number is the last to be chosen", "[kernels][kernel]") {
  const TestBatch batch(BatchSpec{{{1, 40}}, 16});
  const Case c{2, 8, DType::kF32};
  TestCache cache = KeysAlone(c.dtype, batch, 16, c.head_dim);
  const std::vector<float> nan(8, std::numeric_limits<float>::quiet_NaN());
  for (const int32_t place : {0, 17, 39}) {
    const auto span = static_cast<size_t>(place / 16);
    StoreKvRow(cache.view, cache.view.keys, int64_t{batch.span_page[span]} * 16 + place % 16, 0,
               nan.data());
  }
  Random random(4);
  Matrix q = Matrix::RandomOf(random, 1, 16);
  Matrix weights = Matrix::RandomOf(random, 1, 2);
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name);
    const auto list = ListOf(Select(*device, c, batch, cache, q.tensor(), weights.tensor()), 0);
    REQUIRE(list.size() == kTopK);
    for (const int32_t place : {0, 17, 39}) {
      CHECK_FALSE(std::binary_search(list.begin(), list.end(), place));
    }
  }
}

constexpr int32_t kAttentionHeads = 5;
constexpr int32_t kAttentionDim = 72;

Matrix Attend(Device& device, const TestBatch& batch, const TestCache& cache, Tensor q,
              const int32_t* lists) {
  Matrix out(q.rows, q.cols, 2);
  REQUIRE(device.Plan(batch.view()).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                ops.Attention({.q = q,
                               .n_heads = kAttentionHeads,
                               .cache = cache.view,
                               .scale = 0.1f,
                               .out = out.tensor(),
                               .chosen = {lists, kTopK}});
              })
              .ok());
  CHECK(out.GapsIntact());
  return out;
}

bool SameRow(const Matrix& a, int64_t row, const Matrix& b, int64_t other) {
  for (int64_t i = 0; i < a.num_cols(); ++i) {
    if (a(row, i) != b(other, i)) return false;
  }
  return true;
}

TEST_CASE("Attention over chosen positions agrees with the reference, and with itself alone",
          "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (const bool has_trees : {false, true}) {
    TestBatch batch(kMixed);
    Random random(6);
    if (has_trees) GrowTrees(random, {4, 5}, &batch);
    const auto rows = static_cast<int64_t>(batch.token_ids.size());
    Matrix q = Matrix::RandomOf(random, rows, int64_t{kAttentionHeads} * kAttentionDim, 3, 1);
    std::vector<int32_t> lists = RandomLists(random, batch, kTopK);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
      const TestCache cache = KeysAlone(dtype, batch, kMixed.page_tokens, kAttentionDim);
      const Matrix expected = Attend(*reference, batch, cache, q.tensor(), lists.data());
      for (const int32_t threads : {1, 3}) {
        for (auto& [name, device] : CpuDevices(threads)) {
          INFO(name << " " << Info(dtype).name << " threads " << threads << " trees " << has_trees);
          const Matrix found = Attend(*device, batch, cache, q.tensor(), lists.data());
          const Matrix plain = Attend(*device, batch, cache, q.tensor(), nullptr);
          double worst = 0;
          for (int64_t t = 0; t < rows; ++t) {
            for (int64_t i = 0; i < q.num_cols(); ++i) {
              worst = std::max<double>(worst, std::fabs(found(t, i) - expected(t, i)));
            }
            // Rows that read everything are those of attention without lists.
            if (lists[static_cast<size_t>(t) * (1 + kTopK)] == 0)
              CHECK(SameRow(found, t, plain, t));
          }
          const bool dots = MultipliesBf16(name) && dtype != DType::kF32;
          CHECK(worst <= (dots ? 0.1 : 3e-5));
          // The last rows of the longest sequence, one by one.
          for (int32_t i = 0; i < 3 && !has_trees; ++i) {
            const int32_t row = batch.q_begin[5] + i;
            const TestBatch alone = AloneAt(batch, 5, row);
            const Matrix one = Attend(*device, alone, cache, q.rows(row, row + 1),
                                      lists.data() + static_cast<size_t>(row) * (1 + kTopK));
            CHECK(SameRow(one, 0, found, row));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
