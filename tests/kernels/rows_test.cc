// Norm, rotation, KV write, logits and page copies of every level against the reference.
#include <algorithm>
#include <cmath>
#include <limits>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/kv_element.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Largest |a - b| / (1 + |b|).
double WorstError(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (int64_t r = 0; r < a.num_rows(); ++r) {
    for (int64_t c = 0; c < a.num_cols(); ++c) {
      double error = std::fabs(double{a(r, c)} - b(r, c)) / (1 + std::fabs(double{b(r, c)}));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    }
  }
  return worst;
}

// x - mean cancels: the roundings of x are seen in units of the deviation. Largest of all rows.
double Condition(const Matrix& x) {
  double worst = 1;
  for (int64_t r = 0; r < x.num_rows(); ++r) {
    double mean = 0, squares = 0, largest = 0;
    for (int64_t c = 0; c < x.num_cols(); ++c) {
      mean += x(r, c) / static_cast<double>(x.num_cols());
      largest = std::max(largest, std::fabs(double{x(r, c)}));
    }
    for (int64_t c = 0; c < x.num_cols(); ++c) squares += std::pow(x(r, c) - mean, 2);
    double deviation = std::sqrt(squares / static_cast<double>(x.num_cols()) + 1e-5);
    worst = std::max(worst, largest / deviation);
  }
  return worst;
}

// Sums of dim terms of one sign, then a few roundings: the tolerance below.
TEST_CASE("Norms agree with the reference, with residual, bias, offset and odd sizes",
          "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (auto& [name, device] : CpuDevices(2)) {
    for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (int64_t dim : {1, 2, 3, 15, 16, 17, 63, 288, 2048}) {
        for (bool full : {false, true}) {
          for (bool in_place : {false, true}) {
            INFO(name << " kind " << int(kind) << " dim " << dim << " full " << full);
            Random random(static_cast<uint32_t>(dim));
            Matrix x = Matrix::RandomOf(random, 9, dim, 3, 1);
            Matrix residual = Matrix::RandomOf(random, 9, dim, 1, 2);
            std::vector<float> weight = random.Normals(dim), bias = random.Normals(dim);
            auto run = [&](Device& d, Matrix& r) {
              Matrix input = x;
              Matrix out(9, dim, 2);
              Matrix& target = in_place ? input : out;
              REQUIRE(d.Run([&](Ops& ops) {
                         NormArgs args;
                         args.kind = kind;
                         args.x = input.tensor();
                         args.out = target.tensor();
                         if (full) {
                           args.residual = r.tensor();
                           args.weight = weight.data();
                           args.bias = bias.data();
                           args.weight_offset = 1.0f;
                         }
                         ops.Norm(args);
                       }).ok());
              CHECK(target.GapsIntact());
              return target;
            };
            Matrix residual_found = residual, residual_expected = residual;
            Matrix expected = run(*reference, residual_expected);
            Matrix found = run(*device, residual_found);
            double tolerance = kEps * (8 + std::sqrt(static_cast<double>(dim)));
            if (kind == NormKind::kLayer) {
              tolerance *= Condition(full ? residual_expected : x);
            }
            CHECK(WorstError(found, expected) <= tolerance);
            CHECK(SameBits(residual_found, residual_expected));
          }
        }
      }
    }
  }
}

TEST_CASE("A norm of zeros is zero and of huge values is finite in reach of F32",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name);
    Matrix x(2, 40);
    std::fill_n(x.at(1, 0), 40, 1e18f);
    Matrix out(2, 40);
    REQUIRE(device
                ->Run([&](Ops& ops) {
                  NormArgs args;
                  args.x = x.tensor();
                  args.out = out.tensor();
                  ops.Norm(args);
                })
                .ok());
    CHECK(out(0, 39) == 0.0f);
    CHECK(out(1, 39) == Approx(1.0f));
  }
}

struct RopeCase {
  RopeLayout layout;
  int32_t head_dim;
  int32_t rotary_dim;
  DType dtype;
  bool norm;
};

struct RopeResult {
  Matrix q;
  TestCache cache;
};

RopeResult RunRope(Device& device, const RopeCase& c, const TestBatch& batch) {
  constexpr int32_t kHeads = 6, kKvHeads = 2;
  auto n = static_cast<int64_t>(batch.token_ids.size());
  Random random(9);
  RopeResult result{Matrix::RandomOf(random, n, kHeads * c.head_dim, 1),
                    TestCache(c.dtype, batch.num_pages, 16, kKvHeads, c.head_dim, 1)};
  Matrix k = Matrix::RandomOf(random, n, kKvHeads * c.head_dim, 2);
  Matrix v = Matrix::RandomOf(random, n, kKvHeads * c.head_dim, 0, 1);
  std::vector<float> q_norm = random.Normals(c.head_dim), k_norm = random.Normals(c.head_dim);
  std::vector<float> inv_freq, cos_sin(static_cast<size_t>(n * c.rotary_dim));
  for (int32_t i = 0; i < c.rotary_dim / 2; ++i) {
    inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / c.rotary_dim));
  }
  REQUIRE(device.Plan(batch.view()).ok());
  REQUIRE(device
              .Run([&](Ops& ops) {
                RopeKvWriteArgs args;
                if (c.rotary_dim > 0) {
                  ops.RopeAngles({inv_freq, 1.1f, cos_sin.data()});
                  args.cos_sin = cos_sin.data();
                }
                args.q = result.q.tensor();
                args.k = k.tensor();
                args.v = v.tensor();
                args.n_heads = kHeads;
                args.q_norm = c.norm ? q_norm.data() : nullptr;
                args.k_norm = c.norm ? k_norm.data() : nullptr;
                args.rotary_dim = c.rotary_dim;
                args.layout = c.layout;
                args.cache = result.cache.view;
                ops.RopeKvWrite(args);
              })
              .ok());
  return result;
}

// The excess of the keys' difference over one unit of their type, because a value on the border
// between two numbers may round either way. Relative to 1 + |key|.
double WorstKeyExcess(const TestCache& expected, const TestCache& found) {
  const KvCacheView& view = expected.view;
  const int32_t dim = view.head_dim;
  std::vector<float> k(static_cast<size_t>(dim)), found_k(k);
  double worst = 0;
  for (int64_t slot = 0; slot < int64_t{view.num_pages} * view.page_tokens; ++slot) {
    for (int32_t h = 0; h < view.n_kv_heads; ++h) {
      LoadKvRow(view, expected.keys.data(), slot, h, k.data());
      LoadKvRow(view, found.keys.data(), slot, h, found_k.data());
      double largest = 0;
      for (float x : k) largest = std::max<double>(largest, std::fabs(x));
      for (size_t i = 0; i < k.size(); ++i) {
        const double size = 1 + std::fabs(k[i]);
        const double unit = view.dtype == DType::kF32    ? 0
                            : view.dtype == DType::kF16  ? 0x1p-10 * size
                            : view.dtype == DType::kBF16 ? 0x1p-7 * size
                            : view.dtype == DType::kInt8 ? largest / 127
                                                         : 0x1p-3 * size;
        worst = std::max(worst, (std::fabs(found_k[i] - k[i]) - unit) / size);
      }
    }
  }
  return worst;
}

TEST_CASE("Rotation and KV write agree with the reference for layouts, sizes and cache types",
          "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  TestBatch batch({{{5, 20}, {1, 40}, {30, 30}}});
  batch.positions[5] = 100000;
  for (auto& [name, device] : CpuDevices(2)) {
    for (RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
      for (auto [head_dim, rotary_dim] :
           {std::pair(2, 2), std::pair(64, 64), std::pair(80, 32), std::pair(24, 24),
            std::pair(128, 128), std::pair(64, 0)}) {
        for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
          for (bool norm : {false, true}) {
            RopeCase c{layout, head_dim, rotary_dim, dtype, norm};
            INFO(name << " layout " << int(layout) << " dim " << head_dim << "/" << rotary_dim
                      << " " << Info(dtype).name << " norm " << norm);
            RopeResult expected = RunRope(*reference, c, batch);
            RopeResult found = RunRope(*device, c, batch);
            CHECK(WorstError(found.q, expected.q) <= 16 * kEps);
            CHECK(WorstKeyExcess(expected.cache, found.cache) <= 16 * kEps);
            CHECK(found.cache.values == expected.cache.values);
          }
        }
      }
    }
  }
}

// Every level writes the bytes that the reference writes, infinities, NaN, ties and zeros included.
TEST_CASE("8-bit KV rows of extreme values are the reference's bytes at every level",
          "[kernels][kernel]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {0, -0.0f, 0, 0, 0},
      {1e-38f, -1e-39f, 0, 0, 0},
      {127, -63.5f, 0.5f, 1.5f, -2.5f},
      {1e30f, 1e38f, -3e38f, 1, 0},
      {1, 2, nan, 4, 5},
      {1, -kInfinity, 3, 0, 5},
      {448, 463, 465, -1000, 1e9f},
      {0x1p-9f, 0x1p-10f, 0x1.8p-9f, 0x1.fp-7f, -0x1.ffp-7f}};
  const int32_t n = static_cast<int32_t>(rows.size());
  TestBatch batch({{{n, n}}});
  for (DType dtype : {DType::kInt8, DType::kF8E4M3}) {
    auto write = [&](Device& device) {
      TestCache cache(dtype, batch.num_pages, 16, 1, 5, 1);
      Matrix q(n, 5), k(n, 5), v(n, 5);
      for (int32_t t = 0; t < n; ++t) {
        std::copy_n(rows[static_cast<size_t>(t)].data(), 5, k.at(t, 0));
        std::copy_n(rows[static_cast<size_t>(t)].data(), 5, v.at(t, 0));
      }
      RopeKvWriteArgs args;
      args.q = q.tensor();
      args.k = k.tensor();
      args.v = v.tensor();
      args.n_heads = 1;
      args.cache = cache.view;
      REQUIRE(device.Plan(batch.view()).ok());
      REQUIRE(device.Run([&](Ops& ops) { ops.RopeKvWrite(args); }).ok());
      std::vector<float> values;
      for (int32_t t = 0; t < n; ++t) {
        float row[5];
        LoadKvRow(cache.view, cache.values.data(), batch.kv_slot[static_cast<size_t>(t)], 0, row);
        values.insert(values.end(), row, row + 5);
      }
      return values;
    };
    const std::vector<float> expected = write(*CreateReferenceDevice());
    for (auto& [name, device] : CpuDevices(1)) {
      const std::vector<float> found = write(*device);
      for (size_t i = 0; i < found.size(); ++i) {
        INFO(name << " " << Info(dtype).name << " element " << i);
        CHECK((found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))));
      }
    }
  }
}

TEST_CASE("Logits are scaled and capped as the reference does", "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (auto& [name, device] : CpuDevices(2)) {
    for (float softcap : {0.0f, 30.0f}) {
      INFO(name << " softcap " << softcap);
      Random random(3);
      Matrix x = Matrix::RandomOf(random, 3, 1003, 1);
      *x.at(0, 0) = 1e6f;
      *x.at(0, 1) = -1e6f;
      *x.at(0, 2) = 1e-6f;
      *x.at(0, 3) = -kInfinity;
      Matrix expected = x, found = x;
      REQUIRE(reference->Run([&](Ops& ops) { ops.ScaleLogits(expected.tensor(), 2.5f, softcap); })
                  .ok());
      REQUIRE(device->Run([&](Ops& ops) { ops.ScaleLogits(found.tensor(), 2.5f, softcap); }).ok());
      CHECK(found.GapsIntact());
      for (int64_t c = 0; c < 1003; ++c) {
        // tanh within 8 units, relative.
        if (std::isinf(expected(0, c))) {
          CHECK(found(0, c) == expected(0, c));
        } else {
          CHECK(std::fabs(found(0, c) - expected(0, c)) <= 8 * kEps * std::fabs(expected(0, c)));
        }
      }
    }
  }
}

TEST_CASE("Rows whose logits are wanted are gathered in order", "[kernels][unit]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    TestBatch batch({{{4, 4}, {1, 9}}});
    batch.logit_rows = {3, 0, 4, 3};
    REQUIRE(device->Plan(batch.view()).ok());
    Random random(1);
    Matrix x = Matrix::RandomOf(random, 5, 7, 2);
    Matrix out(4, 7, 1);
    REQUIRE(device->Run([&](Ops& ops) { ops.GatherLogitRows(x.tensor(), out.tensor()); }).ok());
    for (int64_t c = 0; c < 7; ++c) {
      CHECK(out(0, c) == x(3, c));
      CHECK(out(1, c) == x(0, c));
      CHECK(out(2, c) == x(4, c));
      CHECK(out(3, c) == x(3, c));
    }
  }
}

TEST_CASE("Rows are copied into columns of a wider tensor, and nothing else is",
          "[kernels][unit]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    TestBatch batch({{{4, 4}, {1, 9}}});
    REQUIRE(device->Plan(batch.view()).ok());
    Random random(2);
    Matrix x = Matrix::RandomOf(random, 5, 7, 2);
    Matrix out(5, 21, 1);
    const Matrix before = out;
    const Tensor whole = out.tensor();
    const Tensor columns{whole.row<float>(0) + 7, 5, 7, whole.stride};
    REQUIRE(device->Run([&](Ops& ops) { ops.CopyRows(x.tensor(), columns); }).ok());
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 21; ++c) {
        const bool is_copied = c >= 7 && c < 14;
        CHECK(out(r, c) == (is_copied ? x(r, c - 7) : before(r, c)));
      }
    }
  }
}

TEST_CASE("CopyPage copies the first positions of every head and nothing else", "[kernels][unit]") {
  std::unique_ptr<Device> device = CreateReferenceDevice();
  const DType dtype = GENERATE(DType::kF16, DType::kInt8, DType::kF8E4M3);
  TestCache cache(dtype, 4, 8, 3, 5, 1);
  TestCache before = cache;
  cache.view.keys = cache.keys.data();
  cache.view.values = cache.values.data();
  device->CopyPage(cache.view, /*from=*/2, /*to=*/1, /*num_tokens=*/3);
  for (int64_t slot = 0; slot < 4 * 8; ++slot) {
    for (int32_t h = 0; h < 3; ++h) {
      int64_t source = slot >= 8 && slot < 11 ? slot + 8 : slot;
      std::vector<float> found(5), expected(5);
      LoadKvRow(cache.view, cache.keys.data(), slot, h, found.data());
      LoadKvRow(cache.view, before.keys.data(), source, h, expected.data());
      REQUIRE(found == expected);
      LoadKvRow(cache.view, cache.values.data(), slot, h, found.data());
      LoadKvRow(cache.view, before.values.data(), source, h, expected.data());
      REQUIRE(found == expected);
    }
  }
}

TEST_CASE("Plan refuses a batch whose arrays contradict each other", "[kernels][unit]") {
  std::unique_ptr<Device> device = CreateReferenceDevice();
  const TestBatch good({{{4, 20}, {1, 9}}});
  REQUIRE(device->Plan(good.view()).ok());
  auto refused = [&](auto change) {
    TestBatch batch = good;
    change(batch);
    return absl::IsInvalidArgument(device->Plan(batch.view()));
  };
  CHECK(refused([](TestBatch& b) { b.positions.pop_back(); }));
  CHECK(refused([](TestBatch& b) { b.kv_slot.push_back(0); }));
  CHECK(refused([](TestBatch& b) { b.q_begin.back() = 4; }));
  CHECK(refused([](TestBatch& b) { b.q_begin[1] = 6; }));
  CHECK(refused([](TestBatch& b) { b.span_begin[1] = 3; }));
  CHECK(refused([](TestBatch& b) { b.span_tokens[0] = 0; }));
  CHECK(refused([](TestBatch& b) { b.context_len[0] = 21; }));
  CHECK(refused([](TestBatch& b) { b.logit_rows[0] = 5; }));
  CHECK(refused([](TestBatch& b) { b.span_page[0] = -1; }));
  REQUIRE(device->Plan(TestBatch({}).view()).ok());
  // The spans of further groups are checked in the same way.
  BatchSpans spans{good.kv_slot, good.span_begin, good.span_page, good.span_tokens,
                   good.context_len};
  HostBatch grouped = good.view();
  grouped.more_groups = {&spans, 1};
  REQUIRE(device->Plan(grouped).ok());
  const std::vector<int32_t> wrong = {19, 9};
  spans.context_len = wrong;
  CHECK(absl::IsInvalidArgument(device->Plan(grouped)));
}

}  // namespace
}  // namespace heddle::kernels::test
