// RWKV-7's time mix and the shift before it on the emulated CUDA device: against the reference, and
// the same bits in chunks of any lengths, beside another sequence and after rows taken back.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/recurrence_case.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kMixes = 6;

struct MixCase {
  int32_t n_heads;
  int32_t head_dim;
  bool is_first;          // layer
  bool is_plain = false;  // without gate and norm

  int64_t width() const { return int64_t{n_heads} * head_dim; }
  WkvState layout() const { return {n_heads, head_dim, width()}; }
};

// The products of all positions of a text (r, k, v, w, a, m, gate, first value, and the shift's
// rows), and a layer's vectors.
struct MixLayer {
  MixLayer(const MixCase& c, DType act, int64_t positions, uint32_t seed) {
    Random random(seed);
    for (int i = 0; i < 9; ++i) {
      Matrix matrix = Matrix::RandomOf(random, positions, c.width());
      const Activations rounded(act, matrix);
      rows.push_back(std::move(matrix));
    }
    for (int i = 0; i < 5; ++i) vectors.push_back(random.Normals(c.width()));
    mix = random.Normals(kMixes * c.width());
  }
  std::vector<Matrix> rows;
  std::vector<std::vector<float>> vectors;
  std::vector<float> mix;
};

// Rows [begin, begin + n) of a text.
struct MixPiece {
  std::vector<int32_t> pages;
  int32_t begin;
  int32_t n;
};

struct MixResults {
  Activations out, shifted, first_value;
};

MixResults RunMix(Device& device, const MixCase& c, MixLayer& layer, TestCache& cache,
                  const std::vector<MixPiece>& pieces, int32_t page_tokens = kStatePage) {
  const DType act = device.activation_dtype();
  std::vector<Piece> all;
  all.reserve(pieces.size());
  for (const MixPiece& piece : pieces) all.push_back({nullptr, piece.pages, piece.begin, piece.n});
  const StepBatch batch(all, page_tokens);
  const int64_t n = batch.rows();
  std::vector<Activations> rows;
  rows.reserve(layer.rows.size());
  for (Matrix& from : layer.rows) {
    Matrix part(n, c.width());
    int64_t t = 0;
    for (const MixPiece& piece : pieces) {
      for (int32_t i = 0; i < piece.n; ++i, ++t) {
        std::copy_n(from.at(piece.begin + i, 0), c.width(), part.at(t, 0));
      }
    }
    rows.emplace_back(act, part, /*pad=*/3, /*shift=*/1);
  }
  Matrix zeros(n, c.width()), wide(n, kMixes * c.width());
  MixResults results{Activations(act, zeros, 2), Activations(act, wide, 2),
                     Activations(act, zeros)};
  REQUIRE(device.Plan(batch.view()).ok());
  const auto vector = [&](size_t i) { return layer.vectors[i].data(); };
  MustRun(device, [&](Ops& ops) {
    ops.TokenShift({.x = rows[8].tensor(),
                    .mix = layer.mix.data(),
                    .n_mixes = kMixes,
                    .cache = cache.view,
                    .page_tokens = page_tokens,
                    .place = c.layout().shifts,
                    .out = results.shifted.tensor()});
    ops.TimeMix({.n_heads = c.n_heads,
                 .head_dim = c.head_dim,
                 .r = rows[0].tensor(),
                 .k = rows[1].tensor(),
                 .v = rows[2].tensor(),
                 .w = rows[3].tensor(),
                 .a = rows[4].tensor(),
                 .m = c.is_first ? Tensor{} : rows[5].tensor(),
                 .first_value = rows[7].tensor(),
                 .gate = c.is_plain ? Tensor{} : rows[6].tensor(),
                 .key_scale = vector(0),
                 .key_mix = vector(1),
                 .bonus = vector(2),
                 .norm = c.is_plain ? nullptr : vector(3),
                 .norm_bias = c.is_plain ? nullptr : vector(4),
                 .cache = cache.view,
                 .page_tokens = page_tokens,
                 .out = results.out.tensor()});
  });
  results.first_value = std::move(rows[7]);
  CHECK(results.out.GapsIntact());
  CHECK(results.shifted.GapsIntact());
  return results;
}

TestCache CacheOf(const MixCase& c) {
  TestCache cache(DType::kF32, 8, 1, 1, static_cast<int32_t>(c.layout().floats), 5);
  cache.view.values = cache.view.keys;
  return cache;
}

TEST_CASE("Time mixes are those of the reference", "[cuda]") {
  constexpr int32_t kPositions = 70;
  for (const DType act : {DType::kF32, DType::kBF16}) {
    for (const MixCase c : {MixCase{1, 1, true}, {2, 24, false}, {1, 64, true}, {1, 17, false}}) {
      INFO(Info(act).name << ", " << c.n_heads << " heads of " << c.head_dim);
      MixLayer layer(c, act, kPositions, 3);
      TestCache cache = CacheOf(c), expected_cache = CacheOf(c);
      const std::vector<MixPiece> text = {{{5, 2, 7}, 0, kPositions}};
      const MixResults expected = RunMix(*CreateReferenceDevice(), c, layer, expected_cache, text);
      const MixResults found = RunMix(*EmulatedDevice(act), c, layer, cache, text);
      int64_t wrong = 0;
      for (int64_t t = 0; t < kPositions; ++t) {
        for (int64_t i = 0; i < c.width(); ++i) {
          // States of many rows; the norm of a head divides by their deviation.
          const double wanted = expected.out(t, i);
          wrong += !(std::fabs(found.out(t, i) - wanted) <= 2e-3 + RoundingOf(act, wanted));
          wrong += c.is_first && found.first_value(t, i) != expected.first_value(t, i);
        }
        for (int64_t i = 0; i < kMixes * c.width(); ++i) {
          const double wanted = expected.shifted(t, i);
          wrong += !(std::fabs(found.shifted(t, i) - wanted) <= 1e-5 + RoundingOf(act, wanted));
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("Time mixes have the same bits in chunks, beside another text and after rows taken back",
          "[cuda]") {
  constexpr int32_t kPositions = 90;
  const MixCase c{2, 24, false};
  struct Run {
    DType act;
    int32_t page_tokens;
    int rounds;
  };
  for (const auto& [act, page_tokens, rounds] : {Run{DType::kF32, kStatePage, 5},
                                                 {DType::kBF16, kStatePage, 5},
                                                 {DType::kF32, 64, 2},
                                                 {DType::kF32, 128, 2}}) {
    const auto device = EmulatedDevice(act);
    MixLayer layer(c, act, kPositions, 9);
    TestCache whole = CacheOf(c);
    const MixResults all =
        RunMix(*device, c, layer, whole, {{{5, 2, 7}, 0, kPositions}}, page_tokens);
    Random random(12);
    for (int round = 0; round < rounds; ++round) {
      INFO(Info(act).name << ", pages of " << page_tokens << ", round " << round);
      TestCache cache = CacheOf(c);
      int32_t other = 0;
      for (int32_t at = 0; at < kPositions;) {
        const int32_t most = std::min(kPositions - at, round % 2 == 0 ? 16 : 50);
        const int32_t n = round == 4 ? 1 : 1 + random.Below(most);
        const int32_t others = std::min(2, page_tokens - other);
        const MixResults part = RunMix(*device, c, layer, cache,
                                       {{{4}, other, others}, {{1, 3, 6}, at, n}}, page_tokens);
        int64_t wrong = 0;
        for (int64_t t = 0; t < n; ++t) {
          for (int64_t i = 0; i < c.width(); ++i) {
            wrong += !(part.out(others + t, i) == all.out(at + t, i));
          }
          for (int64_t i = 0; i < kMixes * c.width(); ++i) {
            wrong += !(part.shifted(others + t, i) == all.shifted(at + t, i));
          }
        }
        REQUIRE(wrong == 0);
        other = other + others == page_tokens ? 0 : other + others;
        // All rows but the first may be taken back if they are few.
        const bool is_rejected = n > 1 && n <= kScanRows && random.Below(2) == 0;
        at += is_rejected ? 1 + random.Below(n - 1) : n;
      }
    }
  }
}

TEST_CASE("Time mixes without norm and gate give what these are made of", "[cuda]") {
  constexpr int32_t kPositions = 20;
  MixCase c{2, 24, true};
  MixLayer layer(c, DType::kF32, kPositions, 3);
  std::fill(layer.vectors[2].begin(), layer.vectors[2].end(), 0.0f);  // of a row's own key
  const auto device = EmulatedDevice(DType::kF32);
  TestCache cache = CacheOf(c), plain_cache = CacheOf(c);
  const std::vector<MixPiece> text = {{{5, 2, 7}, 0, kPositions}};
  const MixResults whole = RunMix(*device, c, layer, cache, text);
  c.is_plain = true;
  const MixResults plain = RunMix(*device, c, layer, plain_cache, text);
  int64_t wrong = 0;
  for (int64_t t = 0; t < kPositions; ++t) {
    for (int64_t at = 0; at < c.width(); at += c.head_dim) {
      double sum = 0, squares = 0;
      for (int64_t i = at; i < at + c.head_dim; ++i) sum += plain.out(t, i);
      const double mean = sum / c.head_dim;
      for (int64_t i = at; i < at + c.head_dim; ++i) squares += std::pow(plain.out(t, i) - mean, 2);
      const double factor = 1 / std::sqrt(squares / c.head_dim + double{WkvArgs().norm_eps});
      for (int64_t i = at; i < at + c.head_dim; ++i) {
        const auto column = static_cast<size_t>(i);
        const double normed = (plain.out(t, i) - mean) * factor * layer.vectors[3][column];
        const double wanted = (normed + layer.vectors[4][column]) * layer.rows[6](t, i);
        wrong += !(std::fabs(whole.out(t, i) - wanted) <= 1e-4);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Time mixes read pages whose state is said to be elsewhere where it may be", "[cuda]") {
  const MixCase c{1, 24, false};
  MixLayer layer(c, DType::kF32, 60, 4);
  const auto device = EmulatedDevice(DType::kF32);
  const auto go_on_from = [&](int32_t border) {
    TestCache cache = CacheOf(c);
    static_cast<void>(RunMix(*device, c, layer, cache, {{{5}, 0, 40}}, 64));
    std::memcpy(static_cast<char*>(cache.view.keys) + cache.view.PageOffset(5), &border,
                sizeof(border));
    return RunMix(*device, c, layer, cache, {{{5}, 40, 3}}, 64);
  };
  const MixResults first = go_on_from(16), last = go_on_from(32);
  const MixResults before = go_on_from(-1'000'000), behind = go_on_from(1'000'000);
  int64_t wrong = 0;
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < c.width(); ++i) {
      wrong += !(before.out(t, i) == first.out(t, i)) + !(behind.out(t, i) == last.out(t, i));
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace heddle::kernels::test
