// Embeddings, norms, rotation, cache writes, gathering and page copies on the emulated CUDA device
// against the reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/kv_element.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

// F32 and F16 tables are kept in BF16 for BF16 activations; formats with F32 scales are not kept
// exactly.
constexpr DType kOwnTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16,
                               DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                               DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL};
constexpr DType kActivations[] = {DType::kBF16, DType::kF32};

// |found - expected| within one rounding to `act`, plus F32 error of about 100 units.
void CheckClose(const Activations& found, const Activations& expected, DType act, int64_t rows,
                int64_t cols) {
  int64_t wrong = 0;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < cols; ++i) {
      double value = expected(t, i);
      double error = std::fabs(found(t, i) - value);
      wrong += !(error <= RoundingOf(act, value) + 1e-5 * std::fabs(value) + 1e-6);
    }
  }
  CHECK(found.GapsIntact());
  CHECK(wrong == 0);
}

// Runs `op` on the reference and on the emulated device, each with its own `matrices`, and checks
// that all of them agree afterwards. `op` gets the device's ops and the matrices' tensors.
void CheckOp(DType act, std::vector<Matrix> matrices, int64_t pad, const TestBatch* batch,
             const std::function<void(Device&, const std::vector<Tensor>&)>& op) {
  std::vector<Activations> found, expected;
  for (Matrix& matrix : matrices) {
    found.emplace_back(act, matrix, pad);
    expected.emplace_back(DType::kF32, matrix);
  }
  auto run = [&](Device& device, std::vector<Activations>& on) {
    if (batch != nullptr) REQUIRE(device.Plan(batch->view()).ok());
    std::vector<Tensor> tensors;
    for (Activations& a : on) tensors.push_back(a.tensor());
    op(device, tensors);
  };
  run(*CreateReferenceDevice(), expected);
  run(*EmulatedDevice(act), found);
  for (size_t i = 0; i < matrices.size(); ++i) {
    CheckClose(found[i], expected[i], act, matrices[i].num_rows(), matrices[i].num_cols());
  }
}

TEST_CASE("Embeddings and positions are those of the reference in every format", "[cuda]") {
  for (DType act : kActivations) {
    for (DType dtype : kOwnTypes) {
      INFO(Info(dtype).name << " for " << Info(act).name);
      Random random(7);
      TestWeight table = MakeWeight(random, dtype, 50, 96);
      TestBatch batch({{{1, 9}, {11, 40}}, 16});
      for (int32_t& id : batch.token_ids) id = random.Below(50);
      Matrix x = Matrix::RandomOf(random, 12, 96);
      WeightSource source = table.source();
      CheckOp(act, {x, x}, 5, &batch, [&](Device& device, const std::vector<Tensor>& t) {
        auto weight = device.Pack({&source, 1});
        REQUIRE(weight.ok());
        // Kept in BF16 for BF16 activations: compare with tables that are exact.
        const bool is_rounded = dtype == DType::kF32 || dtype == DType::kF16;
        if (act == DType::kBF16 && is_rounded) return;
        MustRun(device, [&](Ops& ops) {
          ops.Embed(**weight, 1.5f, t[0]);
          ops.AddPositions(**weight, 2, t[1]);
        });
      });
    }
  }
}

TEST_CASE("Types of tokens add their rows, and those that the table lacks the first", "[cuda]") {
  for (DType act : kActivations) {
    Random random(9);
    TestWeight table = MakeWeight(random, DType::kBF16, 2, 96);
    std::vector<WeightSource> both = {table.source()};
    std::vector<WeightSource> one = both;
    one[0].rows = 1;
    auto device = EmulatedDevice(act);
    auto weight = device->Pack(both);
    auto short_weight = device->Pack(one);
    REQUIRE((weight.ok() && short_weight.ok()));
    TestBatch batch({{{3, 3}}, 16});
    HostBatch view = batch.view();
    const std::vector<int32_t> types = {0, 1, 1};
    for (const bool has_types : {false, true}) {
      view.token_types = has_types ? std::span<const int32_t>(types) : std::span<const int32_t>();
      REQUIRE(device->Plan(view).ok());
      Matrix zeros(3, 96);
      Activations x(act, zeros);
      Activations y(act, zeros);
      MustRun(*device, [&](Ops& ops) {
        ops.AddTokenTypes(**weight, x.tensor());
        ops.AddTokenTypes(**short_weight, y.tensor());
      });
      for (int64_t row = 0; row < 3; ++row) {
        const int64_t type = has_types && row > 0 ? 1 : 0;
        const float wanted = table.decoded[static_cast<size_t>(type * 96 + 95)];
        CHECK(std::abs(x(row, 95) - wanted) <= RoundingOf(act, wanted));
        CHECK(std::abs(y(row, 95) - table.decoded[95]) <= RoundingOf(act, table.decoded[95]));
      }
    }
  }
}

TEST_CASE("Segments add their rows to every head, the first one where none are given", "[cuda]") {
  constexpr int32_t kHeads = 3, kSegments = 4;
  for (const int32_t width : {1, 20, 64}) {
    for (const DType act : kActivations) {
      Random random(static_cast<uint32_t>(width));
      const std::vector<float> table = random.Normals(int64_t{kSegments} * width);
      TestBatch batch({{{3, 3}, {1, 9}}, 16});
      const std::vector<int32_t> segments = {3, 0, 2, 1};
      Matrix x = Matrix::RandomOf(random, 4, int64_t{kHeads} * width);
      for (const bool has_segments : {false, true}) {
        const auto add = [&](Device& device, Activations& rows) {
          HostBatch view = batch.view();
          if (has_segments) view.segments = segments;
          REQUIRE(device.Plan(view).ok());
          MustRun(device, [&](Ops& ops) {
            ops.AddSegments({table.data(), kSegments, width, rows.tensor()});
          });
        };
        Activations found(act, x, /*pad=*/5), expected(DType::kF32, x);
        add(*EmulatedDevice(act), found);
        add(*CreateReferenceDevice(), expected);
        CheckClose(found, expected, act, 4, int64_t{kHeads} * width);
        CHECK(found.GapsIntact());
      }
    }
  }
}

TEST_CASE("A segment that the table lacks adds nothing", "[cuda]") {
  const std::vector<float> table = {1.0f, 2.0f};
  TestBatch batch({{{2, 2}}, 16});
  const std::vector<int32_t> segments = {1, 7};
  HostBatch view = batch.view();
  view.segments = segments;
  auto device = EmulatedDevice(DType::kF32);
  REQUIRE(device->Plan(view).ok());
  Matrix zeros(2, 2);
  Activations x(DType::kF32, zeros);
  MustRun(*device, [&](Ops& ops) { ops.AddSegments({table.data(), 2, 1, x.tensor()}); });
  CHECK(x(0, 1) == 2.0f);
  CHECK(x(1, 0) == 0.0f);
}

TEST_CASE("Stacked sources of different formats read as their rows", "[cuda]") {
  for (DType act : kActivations) {
    Random random(8);
    TestWeight first = MakeWeight(random, DType::kBF16, 3, 64);
    TestWeight second = MakeWeight(random, DType::kQ4_0, 5, 64);
    const WeightSource sources[] = {first.source(), second.source()};
    auto device = EmulatedDevice(act);
    auto weight = device->Pack(sources);
    REQUIRE(weight.ok());
    CHECK((*weight)->rows == 8);
    TestBatch batch({{{8, 8}}, 16});
    for (int32_t i = 0; i < 8; ++i) batch.token_ids[i] = i;
    REQUIRE(device->Plan(batch.view()).ok());
    Matrix zeros(8, 64);
    Activations out(act, zeros);
    MustRun(*device, [&](Ops& ops) { ops.Embed(**weight, 1.0f, out.tensor()); });
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t k = 0; k < 64; ++k) {
        double value = r < 3 ? first.decoded[r * 64 + k] : second.decoded[(r - 3) * 64 + k];
        // Once to BF16 when packed, once when written.
        CHECK(std::fabs(out(r, k) - value) <= 2.1 * RoundingOf(act, value) + 1e-7);
      }
    }
  }
}

TEST_CASE("Norms of both kinds match, with and without residual, at all widths", "[cuda]") {
  for (DType act : kActivations) {
    for (int64_t dim : {1, 7, 8, 31, 64, 288, 1000}) {
      for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
        Random random(static_cast<uint32_t>(dim));
        std::vector<float> weight = random.Normals(dim), bias = random.Normals(dim);
        Matrix x = Matrix::RandomOf(random, 5, dim);
        for (int64_t pad : {0, 3, 8}) {
          CheckOp(act, {x, x, x}, pad, nullptr, [&](Device& device, const std::vector<Tensor>& t) {
            NormArgs args;
            args.kind = kind;
            args.x = t[0];
            args.weight = weight.data();
            args.bias = kind == NormKind::kLayer ? bias.data() : nullptr;
            args.weight_offset = 0.5f;
            args.out = t[0];  // in place
            MustRun(device, [&](Ops& ops) { ops.Norm(args); });
            // Sums that BF16 holds exactly: both sides then norm the same residual.
            if (act == DType::kBF16) return;
            args.residual = t[1];
            args.out = t[2];
            MustRun(device, [&](Ops& ops) { ops.Norm(args); });
          });
        }
      }
    }
  }
}

TEST_CASE("The residual of a norm is rounded before it is normed", "[cuda]") {
  auto device = EmulatedDevice(DType::kBF16);
  // 256 + 1 is halfway between two BF16 and rounds to even: 256.
  Matrix x(1, 2), residual(1, 2), zeros(1, 2);
  *x.at(0, 0) = 1;
  *x.at(0, 1) = 0;
  *residual.at(0, 0) = 256;
  *residual.at(0, 1) = 256;
  Activations x_device(DType::kBF16, x), r_device(DType::kBF16, residual);
  Activations out(DType::kBF16, zeros);
  MustRun(*device, [&](Ops& ops) {
    ops.Norm({.x = x_device.tensor(), .residual = r_device.tensor(), .out = out.tensor()});
  });
  CHECK(r_device(0, 0) == 256);
  CHECK(out(0, 0) == 1);
  CHECK(out(0, 1) == 1);
}

struct RopeCase {
  int32_t n_heads, n_kv_heads, head_dim, rotary_dim;
  RopeLayout layout;
  DType cache;
  bool norms;
  bool norms_last = false;
};

// One unit in the last place of `value` in a row of the cache whose largest is `largest`.
double StepOf(DType dtype, double value, double largest) {
  switch (dtype) {
    case DType::kF32:
      return std::fabs(value) * 0x1p-24;
    case DType::kF16:
      return std::fabs(value) * 0x1p-10;
    case DType::kInt8:
      return largest / 127;
    case DType::kF8E4M3:
      return std::max(std::fabs(value) * 0x1p-3, 0x1p-9);
    default:
      return std::fabs(value) * 0x1p-7;
  }
}

// Elements of all rows that are more than a unit apart.
int64_t CountWrong(const TestCache& found, const TestCache& expected) {
  const KvCacheView& view = expected.view;
  std::vector<float> a(static_cast<size_t>(view.head_dim)), b(a);
  int64_t wrong = 0;
  for (int64_t slot = 0; slot < int64_t{view.num_pages} * view.page_tokens; ++slot) {
    for (int32_t head = 0; head < view.n_kv_heads; ++head) {
      for (bool values : {false, true}) {
        LoadKvRow(view, values ? view.values : view.keys, slot, head, a.data());
        LoadKvRow(view, values ? found.view.values : found.view.keys, slot, head, b.data());
        double largest = 0;
        for (float value : a) largest = std::max<double>(largest, std::fabs(value));
        for (size_t i = 0; i < a.size(); ++i) {
          const double allowed = StepOf(view.dtype, a[i], largest) + std::fabs(a[i]) * 1e-5 + 1e-6;
          wrong += !(std::fabs(static_cast<double>(b[i]) - a[i]) <= allowed);
        }
      }
    }
  }
  return wrong;
}

void CheckRope(const RopeCase& c, DType act) {
  Random random(3);
  TestBatch batch({{{5, 9}, {1, 40}}, 8});
  for (int32_t& position : batch.positions) position += 100000;  // long contexts keep precision
  const int64_t n = 6;
  Matrix q = Matrix::RandomOf(random, n, int64_t{c.n_heads} * c.head_dim);
  Matrix k = Matrix::RandomOf(random, n, int64_t{c.n_kv_heads} * c.head_dim);
  Matrix v = Matrix::RandomOf(random, n, int64_t{c.n_kv_heads} * c.head_dim);
  { Activations rounded_k(act, k), rounded_v(act, v); }
  std::vector<float> q_norm = random.Normals(c.head_dim), k_norm = random.Normals(c.head_dim);
  std::vector<float> inv_freq;
  for (int i = 0; i < c.rotary_dim / 2; ++i) {
    inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / c.rotary_dim));
  }
  std::vector<TestCache> caches;
  CheckOp(act, {q}, 2, &batch, [&](Device& device, const std::vector<Tensor>& t) {
    caches.emplace_back(c.cache, batch.num_pages, 8, c.n_kv_heads, c.head_dim, 1);
    // Results in k are unspecified: copies of their own.
    const bool is_reference = device.activation_dtype() == DType::kF32 && caches.size() == 1;
    Activations k_device(is_reference ? DType::kF32 : act, k);
    Activations v_device(is_reference ? DType::kF32 : act, v);
    std::vector<float> cos_sin(static_cast<size_t>(n * c.rotary_dim) + 1);
    RopeKvWriteArgs args;
    args.q = t[0];
    args.k = k_device.tensor();
    args.v = v_device.tensor();
    args.n_heads = c.n_heads;
    args.q_norm = c.norms ? q_norm.data() : nullptr;
    args.k_norm = c.norms ? k_norm.data() : nullptr;
    args.norms_last = c.norms_last;
    args.cos_sin = c.rotary_dim > 0 ? cos_sin.data() : nullptr;
    args.rotary_dim = c.rotary_dim;
    args.layout = c.layout;
    args.cache = caches.back().view;
    MustRun(device, [&](Ops& ops) {
      if (c.rotary_dim > 0) {
        ops.RopeAngles({.inv_freq = inv_freq, .scale = 1.1f, .cos_sin = cos_sin.data()});
      }
      ops.RopeKvWrite(args);
    });
  });
  CHECK(CountWrong(caches[1], caches[0]) == 0);
}

TEST_CASE("Rotation, head norms and cache writes match the reference", "[cuda]") {
  const RopeCase cases[] = {
      {4, 2, 64, 64, RopeLayout::kHalf, DType::kF16, false},
      {3, 3, 48, 32, RopeLayout::kInterleaved, DType::kBF16, true},
      {5, 1, 20, 20, RopeLayout::kHalf, DType::kF32, true},
      {2, 1, 8, 0, RopeLayout::kHalf, DType::kF16, false},
      {1, 1, 256, 128, RopeLayout::kInterleaved, DType::kF32, false},
      {4, 2, 64, 64, RopeLayout::kHalf, DType::kF8E4M3, true},
      {3, 3, 48, 32, RopeLayout::kInterleaved, DType::kInt8, true},
      {2, 1, 7, 0, RopeLayout::kHalf, DType::kInt8, false},
      {4, 2, 64, 64, RopeLayout::kHalf, DType::kF16, true, true},
      {3, 3, 48, 32, RopeLayout::kInterleaved, DType::kF32, true, true},
      {5, 1, 7, 0, RopeLayout::kHalf, DType::kBF16, true, true},
  };
  for (const RopeCase& c : cases) {
    for (DType act : kActivations) CheckRope(c, act);
  }
}

TEST_CASE("An int8 row of infinities or of zeros is written as the reference does", "[cuda]") {
  TestBatch batch({{{3, 3}}, 4});
  Matrix q(3, 8), k(3, 8), v(3, 8);
  *k.at(0, 5) = std::numeric_limits<float>::infinity();
  *v.at(1, 0) = 3.0f;
  *k.at(2, 7) = 1e-35f;
  auto write = [&](Device& device, DType act, TestCache& cache) {
    Activations q_own(act, q), k_own(act, k), v_own(act, v);
    REQUIRE(device.Plan(batch.view()).ok());
    RopeKvWriteArgs args;
    args.q = q_own.tensor();
    args.k = k_own.tensor();
    args.v = v_own.tensor();
    args.n_heads = 1;
    args.cache = cache.view;
    MustRun(device, [&](Ops& ops) { ops.RopeKvWrite(args); });
  };
  TestCache expected(DType::kInt8, batch.num_pages, 4, 1, 8, 1);
  TestCache found(DType::kInt8, batch.num_pages, 4, 1, 8, 1);
  write(*CreateReferenceDevice(), DType::kF32, expected);
  write(*EmulatedDevice(DType::kF32), DType::kF32, found);
  CHECK(found.keys == expected.keys);
  CHECK(found.values == expected.values);
}

TEST_CASE("Logit rows are gathered, scaled and capped", "[cuda]") {
  for (DType act : kActivations) {
    Random random(4);
    TestBatch batch({{{3, 9}, {4, 40}}, 16});
    batch.logit_rows = {0, 2, 6};
    Matrix x = Matrix::RandomOf(random, 7, 33), out(3, 33);
    CheckOp(act, {x, out}, 1, &batch, [&](Device& device, const std::vector<Tensor>& t) {
      MustRun(device, [&](Ops& ops) { ops.GatherLogitRows(t[0], t[1]); });
    });
  }
  for (DType act : kActivations) {
    Random random(6);
    Matrix x = Matrix::RandomOf(random, 5, 300, 7), out(5, 300, 3);
    CheckOp(act, {x, out}, 1, nullptr, [&](Device& device, const std::vector<Tensor>& t) {
      MustRun(device, [&](Ops& ops) { ops.CopyRows(t[0], t[1]); });
    });
  }
  Random random(5);
  Matrix logits = Matrix::RandomOf(random, 3, 700);
  for (float softcap : {0.0f, 2.0f}) {
    CheckOp(DType::kF32, {logits}, 0, nullptr, [&](Device& device, const std::vector<Tensor>& t) {
      MustRun(device, [&](Ops& ops) { ops.ScaleLogits(t[0], 3.0f, softcap); });
    });
  }
}

// Sums of ranges, from the device, with rows of x `pad` elements apart.
std::vector<float> SumsOn(Device& device, Tensor x, std::span<const RowRange> ranges) {
  std::vector<float> sums(ranges.size() * static_cast<size_t>(x.cols), -1.0f);
  MustRun(device, [&](Ops& ops) { ops.SumRows({.x = x, .ranges = ranges, .out = sums.data()}); });
  return sums;
}

TEST_CASE("Ranges of rows are summed, whatever their lengths, widths and places", "[cuda]") {
  for (DType act : kActivations) {
    auto device = EmulatedDevice(act);
    auto reference = CreateReferenceDevice();
    for (const auto& [cols, pad] : {std::pair{1, 0}, {2, 0}, {7, 1}, {64, 0}, {65, 0}, {130, 6}}) {
      INFO(Info(act).name << ", " << cols << " columns, " << pad << " between rows");
      Random random(static_cast<uint32_t>(cols));
      Matrix x = Matrix::RandomOf(random, 200, cols);
      Activations found(act, x, pad), expected(DType::kF32, x);
      const RowRange ranges[] = {{0, 1}, {5, 8}, {13, 0}, {13, 9}, {22, 64}, {3, 197}, {199, 1}};
      const std::vector<float> sums = SumsOn(*device, found.tensor(), ranges);
      const std::vector<float> wanted = SumsOn(*reference, expected.tensor(), ranges);
      for (size_t i = 0; i < sums.size(); ++i) {
        // F32 additions of up to 197 normally distributed numbers.
        const auto rows = static_cast<float>(ranges[i / static_cast<size_t>(cols)].num_rows);
        CHECK(std::fabs(sums[i] - wanted[i]) <= rows * 8 * 0x1p-24f * std::sqrt(rows));
      }
      CHECK(found.GapsIntact());
    }
    // As many as a step may have, beside each other in one call and in several.
    Matrix ones(3, 64);
    for (int64_t i = 0; i < 3 * 64; ++i) *ones.at(i / 64, i % 64) = 1.0f;
    Activations x(act, ones);
    const auto count = static_cast<size_t>(device->max_row_sums(64));
    REQUIRE(count >= 512);
    const std::vector<RowRange> many(count, RowRange{0, 3});
    const std::vector<float> sums = SumsOn(*device, x.tensor(), many);
    CHECK(std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 3.0f; }));
    std::vector<float> first(64), second(64);
    MustRun(*device, [&](Ops& ops) {
      ops.SumRows({.x = x.tensor(), .ranges = std::span(many).first(1), .out = first.data()});
      const RowRange two[] = {{1, 2}};
      ops.SumRows({.x = x.tensor(), .ranges = two, .out = second.data()});
    });
    CHECK(first == std::vector<float>(64, 3.0f));
    CHECK(second == std::vector<float>(64, 2.0f));
  }
}

TEST_CASE("A page copy moves the asked positions of every head and nothing else", "[cuda]") {
  for (DType dtype : {DType::kF16, DType::kF32, DType::kF8E4M3, DType::kInt8}) {
    for (int32_t head_dim : {9, 16}) {
      for (int32_t tokens : {0, 1, 7, 8}) {
        TestCache found(dtype, 4, 8, 3, head_dim, 1), expected(dtype, 4, 8, 3, head_dim, 1);
        CreateReferenceDevice()->CopyPage(expected.view, 2, 1, tokens);
        auto device = EmulatedDevice(DType::kBF16);
        device->CopyPage(found.view, 2, 1, tokens);
        MustRun(*device, [](Ops&) {});
        CHECK(found.keys == expected.keys);
        CHECK(found.values == expected.values);
      }
    }
  }
}

TEST_CASE("Queries are sharpened as the reference does", "[cuda]") {
  TestBatch batch({{{5, 40}, {1, 90}, {3, 3}}, 16}, 3);
  Random random(9);
  for (DType act : kActivations) {
    CheckOp(act, {Matrix::RandomOf(random, 9, 300)}, 2, &batch,
            [](Device& device, const std::vector<Tensor>& tensors) {
              MustRun(device, [&](Ops& ops) { ops.Sharpen({tensors[0], 0.3f, 16, 1}); });
            });
  }
}

TEST_CASE("xIELU is that of the reference", "[cuda]") {
  Random random(10);
  for (DType act : kActivations) {
    CheckOp(act, {Matrix::RandomOf(random, 5, 300)}, 2, nullptr,
            [](Device& device, const std::vector<Tensor>& tensors) {
              XieluArgs args{.x = tensors[0], .alpha_positive = 0.7f, .alpha_negative = 1.3f};
              MustRun(device, [&](Ops& ops) { ops.Xielu(args); });
            });
  }
}

}  // namespace
}  // namespace heddle::kernels::test
