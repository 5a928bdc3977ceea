// RWKV-7's time mix and the shift before it, of every level: against the reference, and with the
// same bits in slices of any lengths, after rows that were taken back, and beside other sequences.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kPageTokens = 32;

struct Case {
  int32_t n_heads;
  int32_t head_dim;
  bool is_first;          // layer
  bool is_plain = false;  // without gate and norm

  int64_t width() const { return int64_t{n_heads} * head_dim; }
  int64_t floats() const { return WkvState(n_heads, head_dim, width()).floats; }
};

// The products of all positions of a text, and a layer's vectors.
struct Layer {
  Layer(const Case& c, int64_t positions, uint32_t seed) {
    Random random(seed);
    for (int i = 0; i < 7; ++i) {
      rows.push_back(Matrix::RandomOf(random, positions, c.width(), /*pad=*/3, /*shift=*/1));
    }
    shifted = Matrix::RandomOf(random, positions, c.width());
    for (int i = 0; i < 5; ++i) vectors.push_back(random.Normals(c.width()));
    mix = random.Normals(6 * c.width());
    first = Matrix::RandomOf(random, positions, c.width());
  }
  std::vector<Matrix> rows;  // r, k, v, w, a, m, gate
  std::vector<std::vector<float>> vectors;
  std::vector<float> mix;
  Matrix shifted{1, 1};
  Matrix first{1, 1};
};

// Pages of a text in this order.
struct Text {
  std::vector<int32_t> pages;
  TestCache cache;
};

Text TextOn(const Case& c, std::vector<int32_t> pages) {
  Text text{std::move(pages), TestCache(DType::kF32, 8, 1, 1, static_cast<int32_t>(c.floats()), 5)};
  text.cache.view.values = text.cache.view.keys;
  return text;
}

struct Results {
  Matrix out;
  Matrix shifted;
};

// Positions [first, first + n) of the text.
Results Run(Device& device, const Case& c, Layer& layer, Text& text, int64_t first, int64_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n), 0), positions, spans, tokens;
  std::vector<int64_t> slots;
  const int64_t end = first + n;
  for (int64_t p = first; p < end; ++p) {
    positions.push_back(static_cast<int32_t>(p));
    slots.push_back(int64_t{text.pages[static_cast<size_t>(p / kPageTokens)]} * kPageTokens +
                    p % kPageTokens);
  }
  for (int64_t p = 0; p < end; p += kPageTokens) {
    spans.push_back(text.pages[static_cast<size_t>(p / kPageTokens)]);
    tokens.push_back(static_cast<int32_t>(std::min<int64_t>(kPageTokens, end - p)));
  }
  const std::vector<int32_t> q_begin = {0, static_cast<int32_t>(n)};
  const std::vector<int32_t> span_begin = {0, static_cast<int32_t>(spans.size())};
  const std::vector<int32_t> context = {static_cast<int32_t>(end)};
  const HostBatch batch = {.token_ids = ids,
                           .positions = positions,
                           .kv_slot = slots,
                           .q_begin = q_begin,
                           .span_begin = span_begin,
                           .span_page = spans,
                           .span_tokens = tokens,
                           .context_len = context,
                           .logit_rows = {}};
  Results results{Matrix(n, c.width(), 2), Matrix(n, 6 * c.width(), 2)};
  REQUIRE(device.Plan(batch).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                const auto rows = [&](size_t i) { return layer.rows[i].rows(first, end); };
                ops.TokenShift({.x = layer.shifted.rows(first, end),
                                .mix = layer.mix.data(),
                                .n_mixes = 6,
                                .cache = text.cache.view,
                                .page_tokens = kPageTokens,
                                .place = WkvState(c.n_heads, c.head_dim, c.width()).shifts,
                                .out = results.shifted.tensor()});
                ops.TimeMix({.n_heads = c.n_heads,
                             .head_dim = c.head_dim,
                             .r = rows(0),
                             .k = rows(1),
                             .v = rows(2),
                             .w = rows(3),
                             .a = rows(4),
                             .m = c.is_first ? Tensor{} : rows(5),
                             .first_value = layer.first.rows(first, end),
                             .gate = c.is_plain ? Tensor{} : rows(6),
                             .key_scale = layer.vectors[0].data(),
                             .key_mix = layer.vectors[1].data(),
                             .bonus = layer.vectors[2].data(),
                             .norm = c.is_plain ? nullptr : layer.vectors[3].data(),
                             .norm_bias = c.is_plain ? nullptr : layer.vectors[4].data(),
                             .cache = text.cache.view,
                             .page_tokens = kPageTokens,
                             .out = results.out.tensor()});
              })
              .ok());
  CHECK(results.out.GapsIntact());
  CHECK(results.shifted.GapsIntact());
  return results;
}

bool SameRows(const Matrix& part, const Matrix& whole, int64_t first) {
  for (int64_t t = 0; t < part.num_rows(); ++t) {
    for (int64_t i = 0; i < part.num_cols(); ++i) {
      if (part(t, i) != whole(first + t, i)) return false;
    }
  }
  return true;
}

double Worst(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (int64_t t = 0; t < a.num_rows(); ++t) {
    for (int64_t i = 0; i < a.num_cols(); ++i) {
      const double error = std::fabs(double{a(t, i)} - b(t, i));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    }
  }
  return worst;
}

TEST_CASE("Time mixes agree with the reference at every level", "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  constexpr int64_t kPositions = 100;
  for (const Case c : {Case{1, 1, true},
                       {3, 24, false},
                       {2, 64, false},
                       {2, 64, true},
                       {1, 17, false},
                       {2, 20, false, true}}) {
    for (const int32_t threads : {1, 3}) {
      for (auto& [name, device] : CpuDevices(threads)) {
        INFO(name << ", " << c.n_heads << " heads of " << c.head_dim);
        Layer layer(c, kPositions, 3);
        Layer same(c, kPositions, 3);
        Text text = TextOn(c, {5, 2, 7, 0});
        Text other = TextOn(c, {1, 3, 2, 6});
        const Results expected = Run(*reference, c, layer, text, 0, kPositions);
        const Results found = Run(*device, c, same, other, 0, kPositions);
        // States of a hundred rows; the norm of a head divides by their deviation.
        CHECK(Worst(found.out, expected.out) < 2e-3);
        CHECK(Worst(found.shifted, expected.shifted) < 1e-5);
        if (c.is_first) CHECK(Worst(same.first, layer.first) == 0);
      }
    }
  }
}

TEST_CASE("Time mixes have the same bits in slices of any lengths, and after rows taken back",
          "[kernels][kernel]") {
  constexpr int64_t kPositions = 128;
  const Case c{2, 24, false};
  for (const bool on_reference : {true, false}) {
    std::vector<NamedDevice> devices;
    if (on_reference) devices.push_back({"reference", CreateReferenceDevice()});
    if (!on_reference) devices = CpuDevices(2);
    for (auto& [name, device] : devices) {
      Layer layer(c, kPositions, 9);
      Text whole = TextOn(c, {5, 2, 7, 0});
      const Results all = Run(*device, c, layer, whole, 0, kPositions);
      Random random(12);
      for (int round = 0; round < 12; ++round) {
        INFO(name << ", round " << round);
        Text text = TextOn(c, {1, 3, 2, 6});
        for (int64_t at = 0; at < kPositions;) {
          const int64_t most = std::min<int64_t>(kPositions - at, round % 2 == 0 ? 16 : 70);
          const int64_t n = 1 + random.Below(static_cast<int32_t>(most));
          const Results part = Run(*device, c, layer, text, at, n);
          CHECK(SameRows(part.out, all.out, at));
          CHECK(SameRows(part.shifted, all.shifted, at));
          // All rows but the first may be taken back if they are few.
          const bool is_rejected = n > 1 && n <= kScanRows && random.Below(2) == 0;
          at += is_rejected ? 1 + random.Below(static_cast<int32_t>(n - 1)) : n;
        }
      }
    }
  }
}

TEST_CASE("Values are squashed in place", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    for (const Squash kind : {Squash::kTanh, Squash::kSigmoid}) {
      Random random(2);
      Matrix x = Matrix::RandomOf(random, 3, 37, 2, 1);
      std::vector<double> wanted;
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < 37; ++i) {
          *x.at(t, i) *= 4;
          const double value = x(t, i);
          wanted.push_back(kind == Squash::kTanh ? std::tanh(value) : 1 / (1 + std::exp(-value)));
        }
      }
      const TestBatch batch(BatchSpec{{{3, 3}}, 16});
      REQUIRE(device->Plan(batch.view()).ok());
      REQUIRE(device->Run([&](Ops& ops) { ops.SquashElements(kind, x.tensor()); }).ok());
      CHECK(x.GapsIntact());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < 37; ++i) {
          CHECK(std::fabs(x(t, i) - wanted[static_cast<size_t>(t * 37 + i)]) < 1e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
