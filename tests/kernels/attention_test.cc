// Attention of every level against the reference, and its independence of chunking, pages, batch
// and threads, bit for bit.
#include <algorithm>
#include <cmath>
#include <utility>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/kv_element.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/layer_groups.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

using Case = AttentionCase;
using Result = AttentionResult;

TEST_CASE("Attention agrees with the reference for mixed prefill and decode", "[kernels][kernel]") {
  BatchSpec mixed{{{5, 5}, {1, 1}, {1, 33}, {1, 600}, {40, 75}, {3, 1030}}};
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
    for (int32_t head_dim : {1, 8, 64, 80, 96, 112, 128, 160}) {
      Case c{mixed};
      c.dtype = dtype;
      c.head_dim = head_dim;
      CheckCase(c, 1);
    }
  }
}

TEST_CASE("Attention agrees with the reference for odd heads, groups and page sizes",
          "[kernels][kernel]") {
  BatchSpec mixed{{{7, 50}, {1, 129}, {70, 70}}};
  uint32_t seed = 10;
  for (auto [heads, kv_heads] : {std::pair(1, 1), std::pair(3, 3), std::pair(7, 1), std::pair(9, 3),
                                 std::pair(72, 1), std::pair(32, 4)}) {
    for (int32_t page_tokens : {1, 16, 64}) {
      for (DType dtype : {DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
        Case c{mixed};
        c.n_heads = heads;
        c.n_kv_heads = kv_heads;
        c.head_dim = dtype == DType::kInt8 ? 23 : 24;  // scales at odd addresses
        c.dtype = dtype;
        c.batch.page_tokens = page_tokens;
        CheckCase(c, ++seed);
      }
    }
  }
}

TEST_CASE("Windows, soft caps and sinks agree with the reference", "[kernels][kernel]") {
  BatchSpec mixed{{{7, 50}, {1, 1300}, {70, 700}}};
  uint32_t seed = 50;
  for (int32_t window : {0, 1, 31, 100, 5000}) {
    for (float softcap : {0.0f, 0.7f}) {
      for (bool sinks : {false, true}) {
        Case c{mixed};
        c.window = window;
        c.softcap = softcap;
        c.sinks = sinks;
        CheckCase(c, ++seed);
      }
    }
  }
}

// Soft caps bend scores: what scales them has to come before.
TEST_CASE("Windows, soft caps and sinks agree with the reference in 8-bit caches",
          "[kernels][kernel]") {
  for (DType dtype : {DType::kInt8, DType::kF8E4M3}) {
    Case c{{{{7, 50}, {1, 1300, 700}, {70, 700}}}};
    c.dtype = dtype;
    c.window = 100;
    c.softcap = 0.7f;
    c.sinks = true;
    CheckCase(c, 90);
  }
}

TEST_CASE("Attention over an 8-bit cache is exact attention over the values that it stands for",
          "[kernels][unit]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (DType dtype : {DType::kInt8, DType::kF8E4M3}) {
    Case c{{{{3, 40, 21}, {1, 5}}}};
    TestBatch batch(c.batch, 8);
    TestCache cache(dtype, batch.num_pages, 16, c.n_kv_heads, c.head_dim, 8);
    TestCache wide(DType::kF32, batch.num_pages, 16, c.n_kv_heads, c.head_dim, 9);
    std::vector<float> row(static_cast<size_t>(c.head_dim));
    for (int64_t slot = 0; slot < int64_t{batch.num_pages} * 16; ++slot) {
      for (int32_t h = 0; h < c.n_kv_heads; ++h) {
        LoadKvRow(cache.view, cache.view.keys, slot, h, row.data());
        StoreKvRow(wide.view, wide.view.keys, slot, h, row.data());
        LoadKvRow(cache.view, cache.view.values, slot, h, row.data());
        StoreKvRow(wide.view, wide.view.values, slot, h, row.data());
      }
    }
    Random random(8);
    Matrix q = Matrix::RandomOf(random, 4, int64_t{c.n_heads} * c.head_dim);
    Result found = Attend(*reference, c, batch, cache, q, {});
    Result expected = Attend(*reference, c, batch, wide, q, {});
    CHECK(SameBits(found.out, expected.out));
    CHECK(SameBits(found.lse, expected.lse));
  }
}

// One position of one head with its scale, as it lies in the page.
void CopyRow(const KvCacheView& from, int64_t from_slot, const KvCacheView& to, int64_t to_slot,
             int32_t head) {
  const int64_t bytes = from.head_dim * KvElementBytes(from.dtype);
  for (auto [source, target] : {std::pair(from.keys, to.keys), std::pair(from.values, to.values)}) {
    const auto* read = static_cast<const char*>(source);
    auto* write = static_cast<char*>(target);
    std::copy_n(read + RowOffset(from, from_slot, head), bytes,
                write + RowOffset(to, to_slot, head));
    std::copy_n(read + ScaleOffset(from, from_slot, head), KvScaleBytes(from.dtype),
                write + ScaleOffset(to, to_slot, head));
  }
}

// The last rows of a sequence, alone in their batch, over a copy of the cache with other pages.
TEST_CASE("A row of attention has the same bits however its context was chunked and paged",
          "[kernels][kernel]") {
  constexpr int32_t kContext = 1100;
  const DType dtype = GENERATE(DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3);
  Case c{{{{kContext, kContext}}}};
  c.dtype = dtype;
  c.n_heads = 8;
  TestBatch whole(c.batch, 3);
  TestCache cache(c.dtype, whole.num_pages, 16, c.n_kv_heads, c.head_dim, 3);
  Random random(3);
  Matrix q = Matrix::RandomOf(random, kContext, int64_t{c.n_heads} * c.head_dim);
  for (int32_t window : {0, 77}) {
    c.window = window;
    for (auto& [name, device] : CpuDevices(1)) {
      Result all = Attend(*device, c, whole, cache, q, {});
      auto threaded = CreateCpuDevice({4, name, false});
      REQUIRE(threaded.ok());
      for (auto [rows, context, split, page_tokens] :
           {std::tuple(1, 1100, -1, 16), std::tuple(1, 513, 7, 16), std::tuple(100, 700, 300, 64),
            std::tuple(3, 32, -1, 4), std::tuple(64, 1088, 1000, 32), std::tuple(1, 1, -1, 16)}) {
        INFO(name << " " << Info(dtype).name << " rows " << rows << " of " << context << " window "
                  << window);
        BatchSpec spec{{{1, 40}, {rows, context, split}, {5, 9}}, page_tokens};
        TestBatch batch(spec, 4);
        TestCache other(c.dtype, batch.num_pages, page_tokens, c.n_kv_heads, c.head_dim, 5);
        // Position p of the sequence holds what it holds in `cache`.
        int32_t position = 0;
        int32_t whole_span = 0, whole_offset = 0;
        for (int32_t i = batch.span_begin[1]; i < batch.span_begin[2]; ++i) {
          for (int32_t j = 0; j < batch.span_tokens[i]; ++j, ++position) {
            int64_t from = int64_t{whole.span_page[whole_span]} * 16 + whole_offset;
            int64_t to = int64_t{batch.span_page[i]} * page_tokens + j;
            for (int32_t h = 0; h < c.n_kv_heads; ++h) {
              CopyRow(cache.view, from, other.view, to, h);
            }
            if (++whole_offset == 16) ++whole_span, whole_offset = 0;
          }
        }
        Matrix part = Matrix::RandomOf(random, 1 + rows + 5, q.num_cols());
        for (int32_t i = 0; i < rows; ++i) {
          std::copy_n(q.at(context - rows + i, 0), q.num_cols(), part.at(1 + i, 0));
        }
        Result once = Attend(*device, c, batch, other, part, {});
        Result split_over_threads = Attend(**threaded, c, batch, other, part, {});
        Matrix expected(rows, q.num_cols());
        Matrix found(rows, q.num_cols());
        std::copy_n(all.out.at(0, 0), 0, expected.at(0, 0));
        for (int32_t i = 0; i < rows; ++i) {
          std::copy_n(all.out.at(context - rows + i, 0), q.num_cols(), expected.at(i, 0));
          std::copy_n(once.out.at(1 + i, 0), q.num_cols(), found.at(i, 0));
        }
        CHECK(SameBits(found, expected));
        CHECK(SameBits(once.out, split_over_threads.out));
        CHECK(SameBits(once.lse, split_over_threads.lse));
      }
    }
  }
}

TEST_CASE("Attention both ways agrees with the reference", "[kernels][kernel]") {
  BatchSpec texts{{{5, 5}, {1, 1}, {64, 64}, {129, 129}, {700, 700}}};
  uint32_t seed = 40;
  for (int32_t window : {0, 1, 2, 65, 600}) {
    for (auto [heads, kv_heads] : {std::pair(4, 2), std::pair(5, 5), std::pair(9, 3)}) {
      Case c{texts};
      c.n_heads = heads;
      c.n_kv_heads = kv_heads;
      c.head_dim = 24;
      c.dtype = window == 2 ? DType::kBF16 : DType::kF32;
      c.window = window;
      c.both_ways = true;
      CheckCase(c, ++seed);
    }
  }
}

TEST_CASE("Biases of distances agree with the reference", "[kernels][kernel]") {
  BatchSpec texts{{{5, 5}, {1, 1}, {64, 64}, {129, 129}, {700, 700}}};
  uint32_t seed = 60;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (auto [heads, kv_heads] : {std::pair(4, 2), std::pair(5, 5), std::pair(9, 3)}) {
      Case c{texts};
      c.n_heads = heads;
      c.n_kv_heads = kv_heads;
      c.head_dim = 24;
      c.dtype = dtype;
      c.window = dtype == DType::kF16 ? 65 : 0;
      c.both_ways = c.bias = true;
      CheckCase(c, ++seed);
    }
  }
}

// With one key for all positions, the weights of values are the softmax of the biases.
TEST_CASE("A bias is that of the key's place less the query's", "[kernels][kernel]") {
  Case c;
  c.batch = {.sequences = {{3, 3}}, .page_tokens = 16};
  c.n_heads = c.n_kv_heads = 1;
  c.head_dim = 1;
  c.dtype = DType::kF32;
  TestBatch batch(c.batch, 7);
  TestCache cache(c.dtype, batch.num_pages, 16, 1, 1, 7);
  std::vector<float> values(3);
  for (int32_t j = 0; j < 3; ++j) {
    const int64_t slot = int64_t{batch.span_page[0]} * 16 + j;
    LoadKvRow(cache.view, cache.view.values, slot, 0, &values[static_cast<size_t>(j)]);
  }
  // Only the key behind a row counts, in the last row the only one that is left.
  std::vector<float> table(3 * 2 + DistanceBias::kPadding, -100.0f);
  table[3 + 1] = 0.0f;
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    std::vector<float> q(3, 0.0f), out(3);
    REQUIRE(device->Plan(batch.view()).ok());
    REQUIRE(device
                ->Run([&](Ops& ops) {
                  ops.Attention({.q = {q.data(), 3, 1, 1},
                                 .n_heads = 1,
                                 .cache = cache.view,
                                 .scale = 1.0f,
                                 .both_ways = true,
                                 .bias = {table.data(), 3},
                                 .out = {out.data(), 3, 1, 1}});
                })
                .ok());
    CHECK(out[0] == Approx(values[1]));
    CHECK(out[1] == Approx(values[2]));
    CHECK(out[2] == Approx((values[0] + values[1] + values[2]) / 3));
  }
}

// A window of 1 is a row's own value; one as long as the text is none; without one, rows see what
// the rows of a tree with all bits see.
TEST_CASE("Rows both ways see what is behind them, as far as their window", "[kernels][kernel]") {
  Case c;
  c.batch = {.sequences = {{40, 40}}, .page_tokens = 16};
  TestBatch text(c.batch, 7);
  TestBatch tree = text;
  tree.tree_mask.assign(40, (uint64_t{1} << 40) - 1);
  TestCache cache(c.dtype, text.num_pages, 16, c.n_kv_heads, c.head_dim, 7);
  Random random(7);
  Matrix q = Matrix::RandomOf(random, 40, int64_t{c.n_heads} * c.head_dim);
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    c.both_ways = false;
    const Result all = Attend(*device, c, tree, cache, q, {});
    const Result causal = Attend(*device, c, text, cache, q, {});
    c.both_ways = true;
    CHECK(SameBits(Attend(*device, c, text, cache, q, {}).out, all.out));
    c.window = 40;
    CHECK(SameBits(Attend(*device, c, text, cache, q, {}).out, all.out));
    c.window = 1;
    const Result own = Attend(*device, c, text, cache, q, {});
    CHECK(own.out(0, 0) == causal.out(0, 0));  // the first row of a text sees itself alone
    CHECK_FALSE(own.out(39, 0) == causal.out(39, 0));
    c.window = 0;
  }
}

TEST_CASE("Scores of any size give a softmax and no NaN", "[kernels][kernel]") {
  Case c{{{{4, 40}}}};
  c.dtype = DType::kF32;
  c.head_dim = 16;
  TestBatch batch(c.batch, 6);
  TestCache cache(c.dtype, batch.num_pages, 16, c.n_kv_heads, c.head_dim, 6);
  Random random(6);
  Matrix q = Matrix::RandomOf(random, 4, int64_t{c.n_heads} * c.head_dim);
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < q.num_cols(); ++i) *q.at(t, i) *= 1e4f;
  }
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  Result expected = Attend(*reference, c, batch, cache, q, {});
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name);
    Result found = Attend(*device, c, batch, cache, q, {});
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t i = 0; i < q.num_cols(); ++i) {
        // Scores of 1e4 are known to 1e4 * 2^-22, and so are the logarithms of the weights.
        CHECK(found.out(t, i) == Approx(expected.out(t, i)).margin(0.02));
      }
    }
  }
}

TEST_CASE("A layer reads and writes the pages of its own group", "[kernels][kernel]") {
  CheckLayerGroups(*CreateReferenceDevice());
  for (auto& [name, device] : CpuDevices(2)) {
    INFO(name);
    CheckLayerGroups(*device);
  }
}

}  // namespace
}  // namespace heddle::kernels::test
