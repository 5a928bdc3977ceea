// Short convolutions of every level against the reference, and their independence of chunks, pages,
// batch and threads, bit for bit.
#include <algorithm>
#include <cmath>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

struct Case {
  int32_t channels;
  int32_t taps;
  bool bias;
};

// Weights and the inputs of all rows.
struct Layer {
  Layer(const Case& c, int64_t rows, uint32_t seed)
      : bcx(MakeInputs(c, rows, seed)), weight(Random(seed + 1).Normals(c.taps * c.channels)) {
    if (c.bias) bias = Random(seed + 2).Normals(c.channels);
  }
  static Matrix MakeInputs(const Case& c, int64_t rows, uint32_t seed) {
    Random random(seed);
    return Matrix::RandomOf(random, rows, int64_t{3} * c.channels, /*pad=*/3, /*shift=*/1);
  }
  Matrix bcx;
  std::vector<float> weight, bias;
};

Matrix Convolve(Device& device, const Case& c, const Layer& layer, Tensor bcx,
                const HostBatch& batch, TestCache& cache) {
  Matrix out(bcx.rows, c.channels, /*pad=*/2);
  REQUIRE(device.Plan(batch).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                ops.ShortConv({.bcx = bcx,
                               .weight = layer.weight.data(),
                               .bias = c.bias ? layer.bias.data() : nullptr,
                               .taps = c.taps,
                               .cache = cache.view,
                               .out = out.tensor()});
              })
              .ok());
  CHECK(out.GapsIntact());
  return out;
}

TestCache CacheOf(const Case& c, int32_t num_pages, int32_t page_tokens) {
  TestCache cache(DType::kF32, num_pages, page_tokens, 1, c.channels, 5);
  cache.view.values = cache.view.keys;
  return cache;
}

TEST_CASE("Short convolutions agree with the reference at every level", "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  // Starts of texts, decodes, chunks over several pages, a page that ends early.
  const TestBatch batch({{{1, 1}, {3, 3}, {1, 40}, {17, 30}, {2, 2}, {4, 50, 13}}, 16});
  for (const Case c : {Case{1, 1, true},
                       {3, 2, false},
                       {16, 3, true},
                       {17, 4, false},
                       {64, 3, false},
                       {131, 9, true},
                       {2048, 3, false}}) {
    Layer layer(c, static_cast<int64_t>(batch.token_ids.size()), 11);
    TestCache expected_cache = CacheOf(c, batch.num_pages, 16);
    const Matrix expected =
        Convolve(*reference, c, layer, layer.bcx.tensor(), batch.view(), expected_cache);
    for (int32_t threads : {1, 3}) {
      for (auto& [name, device] : CpuDevices(threads)) {
        INFO(name << " channels " << c.channels << " taps " << c.taps);
        TestCache cache = CacheOf(c, batch.num_pages, 16);
        const Matrix found = Convolve(*device, c, layer, layer.bcx.tensor(), batch.view(), cache);
        CHECK(cache.keys == expected_cache.keys);
        double worst = 0;
        for (int64_t t = 0; t < found.num_rows(); ++t) {
          for (int64_t i = 0; i < c.channels; ++i) {
            const double error = std::fabs(double{found(t, i)} - expected(t, i));
            worst = std::max(worst, std::isnan(error) ? 1e9 : error);
          }
        }
        // Terms of products of three and of four normals, each rounded a few times.
        CHECK(worst <= 1.2e-7 * 64 * (1 + c.taps));
      }
    }
  }
}

// A text of 41 positions in chunks, in pages of 8 in another order, beside another sequence.
TEST_CASE("A convolution gives the same bits whole, in chunks, alone and beside others",
          "[kernels][kernel]") {
  constexpr int32_t kTokens = 41, kPage = 8;
  const Case c{37, 5, true};
  Layer layer(c, kTokens, 3);
  for (auto& [name, device] : CpuDevices(2)) {
    INFO(name);
    const TestBatch whole({{{kTokens, kTokens}}, kPage});
    TestCache cache = CacheOf(c, whole.num_pages, kPage);
    const Matrix expected = Convolve(*device, c, layer, layer.bcx.tensor(), whole.view(), cache);
    for (int32_t chunk : {1, 4, 7, 40}) {
      TestCache own = CacheOf(c, whole.num_pages + 3, kPage);
      for (int32_t begin = 0; begin < kTokens; begin += chunk) {
        const int32_t end = std::min(begin + chunk, kTokens);
        // Another sequence's row comes first.
        std::vector<int32_t> tokens(static_cast<size_t>(1 + end - begin), 0);
        std::vector<int64_t> slots = {int64_t{whole.num_pages} * kPage + 2};
        std::vector<int32_t> pages = {whole.num_pages}, counts = {3};
        for (int32_t p = 0; p < end; p += kPage) {
          pages.push_back(whole.span_page[static_cast<size_t>(p / kPage)]);
          counts.push_back(std::min(kPage, end - p));
        }
        for (int32_t p = begin; p < end; ++p) {
          slots.push_back(int64_t{pages[static_cast<size_t>(1 + p / kPage)]} * kPage + p % kPage);
        }
        const std::vector<int32_t> q_begin = {0, 1, 1 + end - begin};
        const std::vector<int32_t> span_begin = {0, 1, static_cast<int32_t>(pages.size())};
        const std::vector<int32_t> context = {3, end};
        const HostBatch batch{.token_ids = tokens,
                              .positions = tokens,
                              .kv_slot = slots,
                              .q_begin = q_begin,
                              .span_begin = span_begin,
                              .span_page = pages,
                              .span_tokens = counts,
                              .context_len = context,
                              .logit_rows = {}};
        Matrix rows(1 + end - begin, int64_t{3} * c.channels);
        for (int64_t t = 0; t < rows.num_rows(); ++t) {
          const int64_t from = t == 0 ? 0 : begin + t - 1;
          std::copy_n(layer.bcx.at(from, 0), rows.num_cols(), rows.at(t, 0));
        }
        const Matrix found = Convolve(*device, c, layer, rows.tensor(), batch, own);
        for (int32_t p = begin; p < end; ++p) {
          for (int32_t i = 0; i < c.channels; ++i) {
            CHECK(found(1 + p - begin, i) == expected(p, i));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
