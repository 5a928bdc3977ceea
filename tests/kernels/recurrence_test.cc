// Recurrences of every level against the reference, and their independence of chunks, of rows that
// were taken back, of pages, batch and threads, bit for bit.
#include <algorithm>
#include <cmath>
#include <string>

#include "catch2/catch.hpp"
#include "kernels/copy_page.h"
#include "kernels/device.h"
#include "tests/kernels/recurrence_case.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

const RecurrenceCase kCases[] = {
    {{RecurrenceRule::kGatedDelta, 4, 2, 16, 16, 4}, false, 16},
    {{RecurrenceRule::kGatedDelta, 3, 1, 5, 7, 3, true}, false, 7},
    {{RecurrenceRule::kGatedDelta, 6, 2, 24, 40, 1, true}, false, 40},
    {{RecurrenceRule::kGatedDelta, 2, 2, 128, 128, 4}, false, 128},
    {{RecurrenceRule::kGatedDelta, 19, 1, 35, 150, 4}, false, 150},
    {{RecurrenceRule::kMamba2, 4, 1, 16, 8, 4}, true, 32, true},
    {{RecurrenceRule::kMamba2, 6, 3, 33, 19, 2}, true, 0},
    {{RecurrenceRule::kMamba2, 2, 1, 128, 64, 4}, true, 64, false},
    {{RecurrenceRule::kSelective, 1, 1, 16, 96, 4}, true},
    {{RecurrenceRule::kSelective, 1, 1, 8, 35, 3}, true},
    {{RecurrenceRule::kSelective, 1, 1, 5, 3, 1}, false, 0, false, false},
    {{RecurrenceRule::kSelective, 1, 1, 32, 529, 4}, true},
};

// Runs one step, and returns its rows.
Matrix RunStep(Device& device, const RecurrenceCase& c, const std::vector<Piece>& pieces,
               SnapshotPages& pages) {
  const StepBatch batch(pieces);
  const int64_t n = batch.rows();
  Matrix in(n, c.shape.cols(), /*pad=*/1);
  FillRows(
      pieces, [](RecurrentLayer& layer) { return &layer.in; }, 0, in.num_cols(), &in);
  Matrix out(n, c.shape.values(), /*pad=*/2);
  RecurrenceArgs args = ArgsOf(c, *pieces.front().layer, pages);
  args.in = in.tensor();
  args.out = out.tensor();
  REQUIRE(device.Plan(batch.view()).ok());
  REQUIRE(device.Run([&](Ops& ops) { ops.Recurrence(args); }).ok());
  if (c.shape.is_selective()) {
    Matrix factors(n, 2 * int64_t{c.shape.key_dim}, /*pad=*/3);
    const auto steps = [](RecurrentLayer& layer) { return &layer.steps; };
    FillRows(pieces, steps, 0, c.shape.values(), &in);
    FillRows(pieces, steps, c.shape.values(), factors.num_cols(), &factors);
    args.factors = factors.tensor();
    REQUIRE(device.Run([&](Ops& ops) { ops.Recurrence(args); }).ok());
  }
  CHECK(out.GapsIntact());
  return out;
}

double Worst(const Matrix& found, const Matrix& expected, double* largest) {
  double worst = 0;
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t i = 0; i < found.num_cols(); ++i) {
      const double error = std::fabs(double{found(t, i)} - expected(t, i));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
      *largest = std::max(*largest, std::fabs(double{expected(t, i)}));
    }
  }
  return worst;
}

TEST_CASE("Recurrences agree with the reference at every level", "[kernels][kernel]") {
  constexpr int32_t kTokens = 100;
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (const RecurrenceCase& c : kCases) {
    RecurrentLayer layer(c, kTokens, 11);
    SnapshotPages expected_pages(c.shape);
    const Matrix expected =
        RunStep(*reference, c, {{&layer, kTextPages, 0, kTokens}}, expected_pages);
    for (auto& [name, device] : CpuDevices(2)) {
      INFO(name << " heads " << c.shape.n_heads << " of " << c.shape.key_dim << " x "
                << c.shape.value_dim);
      SnapshotPages pages(c.shape);
      const Matrix found = RunStep(*device, c, {{&layer, kTextPages, 0, kTokens}}, pages);
      double largest = 1;
      const double worst = Worst(found, expected, &largest);
      // Sums over the state's rows and the rows of a part, of terms that decay.
      CHECK(worst <= 1.2e-7 * 16 * (c.shape.key_dim + kScanRows) * largest);
    }
  }
}

TEST_CASE("Selective scans agree with the reference whether states decay at once or hardly at all",
          "[kernels][kernel]") {
  constexpr int32_t kTokens = 100;
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  const RecurrenceCase c{{RecurrenceRule::kSelective, 1, 1, 21, 37, 4}, true};
  for (const float factor : {1e-5f, 30.0f, 1e4f, 3e37f}) {
    RecurrentLayer layer(c, kTokens, 4);
    for (float& x : layer.decay) x *= factor;
    SnapshotPages expected_pages(c.shape);
    const std::vector<Piece> text = {{&layer, kTextPages, 0, kTokens}};
    const Matrix expected = RunStep(*reference, c, text, expected_pages);
    for (auto& [name, device] : CpuDevices(1)) {
      INFO(name << ", decays times " << factor);
      SnapshotPages pages(c.shape);
      const Matrix found = RunStep(*device, c, text, pages);
      double largest = 1;
      const double worst = Worst(found, expected, &largest);
      CHECK(worst <= 1.2e-7 * 16 * (c.shape.key_dim + kScanRows) * largest);
    }
  }
}

// One row at a time the reference's state is exact; its parts in F32 are what it keeps between
// steps.
TEST_CASE("The reference's recurrence is that of single rows", "[kernels][kernel]") {
  constexpr int32_t kTokens = 40;
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (const RecurrenceCase& c : kCases) {
    RecurrentLayer layer(c, kTokens, 5);
    SnapshotPages whole_pages(c.shape), pages(c.shape);
    const Matrix whole = RunStep(*reference, c, {{&layer, kTextPages, 0, kTokens}}, whole_pages);
    for (int32_t p = 0; p < kTokens; ++p) {
      const Matrix row = RunStep(*reference, c, {{&layer, kTextPages, p, 1}}, pages);
      for (int64_t i = 0; i < row.num_cols(); ++i) {
        CHECK(row(0, i) == Approx(whole(p, i)).epsilon(1e-4).margin(1e-4));
      }
    }
  }
}

TEST_CASE("A recurrence gives the same bits whole, in chunks, beside others and after drafts",
          "[kernels][kernel]") {
  constexpr int32_t kTokens = 90;
  for (const RecurrenceCase& c : kCases) {
    RecurrentLayer layer(c, kTokens, 3);
    for (auto& [name, device] : CpuDevices(3)) {
      INFO(name << " heads " << c.shape.n_heads << " of " << c.shape.key_dim << " x "
                << c.shape.value_dim);
      SnapshotPages pages(c.shape);
      const auto run = [&, on = device.get()](const std::vector<Piece>& pieces, SnapshotPages& in) {
        return RunStep(*on, c, pieces, in);
      };
      const Matrix expected = run({{&layer, kTextPages, 0, kTokens}}, pages);
      for (const std::vector<int32_t>& lengths :
           std::vector<std::vector<int32_t>>{{1}, {7}, {16}, {17}, {31, 2, 50}, {32, 1}}) {
        CheckSlices(run, c, layer, kTokens, expected, lengths, false);
      }
      for (const std::vector<int32_t>& lengths :
           std::vector<std::vector<int32_t>>{{16}, {3, 16, 9}, {20, 16}}) {
        CheckSlices(run, c, layer, kTokens, expected, lengths, true);
      }
    }
  }
}

TEST_CASE("A copied snapshot goes on as the one that it was copied from", "[kernels][kernel]") {
  constexpr int32_t kTokens = 60;
  const RecurrenceCase& c = kCases[0];
  RecurrentLayer layer(c, kTokens, 8);
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name);
    SnapshotPages pages(c.shape);
    static_cast<void>(RunStep(*device, c, {{&layer, kTextPages, 0, 43}}, pages));
    CopyHostPage(pages.view(), kTextPages[1], 8, 1);
    const Matrix own = RunStep(*device, c, {{&layer, kTextPages, 43, 12}}, pages);
    const Matrix copy = RunStep(*device, c, {{&layer, {kTextPages[0], 8}, 43, 12}}, pages);
    CHECK(SameBits(own, copy));
  }
}

TEST_CASE("Products of elements and factors are those by hand, in columns of wider tensors too",
          "[kernels][kernel]") {
  Random random(3);
  for (const int64_t cols : {1, 7, 16, 37, 256}) {
    std::vector<NamedDevice> devices = CpuDevices(1);
    devices.push_back({"reference", CreateReferenceDevice()});
    Matrix factor = Matrix::RandomOf(random, 3, cols + 2, 2, 1);
    for (auto& [name, device] : devices) {
      INFO(name << " with " << cols << " columns");
      Matrix x = Matrix::RandomOf(random, 3, cols + 2, 3);
      const Matrix before = x;
      const auto inside = [cols](Tensor tensor) {
        return Tensor{static_cast<float*>(tensor.data) + 1, tensor.rows, cols, tensor.stride};
      };
      REQUIRE(device
                  ->Run([&](Ops& ops) {
                    ops.Multiply(inside(factor.tensor()), inside(x.tensor()));
                    ops.Scale(inside(x.tensor()), -1.5f);
                  })
                  .ok());
      CHECK(x.GapsIntact());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < cols + 2; ++i) {
          const bool is_inside = i > 0 && i <= cols;
          const float product = before(t, i) * factor(t, i);
          CHECK(x(t, i) == (is_inside ? product * -1.5f : before(t, i)));
        }
      }
    }
  }
}

TEST_CASE("Gates of elements agree with the reference", "[kernels][kernel]") {
  Random random(2);
  for (const int64_t cols : {1, 7, 16, 37, 256}) {
    Matrix gate = Matrix::RandomOf(random, 3, cols, 2, 1);
    for (auto& [name, device] : CpuDevices(1)) {
      Matrix x = Matrix::RandomOf(random, 3, cols, 3);
      const Matrix before = x;
      REQUIRE(device->Run([&](Ops& ops) { ops.GateElements(gate.tensor(), x.tensor()); }).ok());
      CHECK(x.GapsIntact());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < cols; ++i) {
          const double factor = 1 / (1 + std::exp(-double{gate(t, i)}));
          CHECK(x(t, i) == Approx(before(t, i) * factor).epsilon(1e-6).margin(1e-7));
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
