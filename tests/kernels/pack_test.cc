// Weights as Device::Pack takes them: from readers, with columns in other orders, stacked, or not
// at all.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/weight_sources.h"
#include "tests/kernels/products.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

// Rows of a TestWeight, counting that they are asked for in range.
class RowsOf final : public RowReader {
 public:
  explicit RowsOf(const TestWeight& weight) : weight_(weight) {}
  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    REQUIRE((begin >= 0 && begin + count <= weight_.rows));
    const int64_t row_bytes = RowBytes(weight_.dtype, weight_.cols);
    std::copy_n(weight_.bytes.data() + begin * row_bytes, count * row_bytes, out);
  }

 private:
  const TestWeight& weight_;
};

TEST_CASE("Rows that a reader makes, and parts of them, give the same bits as rows in memory",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    for (DType dtype : {DType::kBF16, DType::kInt4G128, DType::kQ8_0}) {
      INFO(name << " " << Info(dtype).name);
      Random random(7);
      TestWeight w = MakeWeight(random, dtype, 70, 128);
      RowsOf reader(w);
      WeightSource lazy = w.source();
      lazy.data = nullptr;
      lazy.reader = &reader;
      Matrix x = Matrix::RandomOf(random, 3, 128);
      for (int64_t begin : {0, 33}) {
        std::vector<WeightSource> from_memory = {PartOf(w.source(), begin, 37)};
        std::vector<WeightSource> from_reader = {PartOf(lazy, begin, 37)};
        auto expected = device->Pack(from_memory);
        auto found = device->Pack(from_reader);
        REQUIRE((expected.ok() && found.ok()));
        CHECK(SameBits(Multiply(*device, **found, x.tensor()),
                       Multiply(*device, **expected, x.tensor())));
      }
    }
  }
}

TEST_CASE("Columns stored in another order meet the inputs that they belong to",
          "[kernels][kernel]") {
  Random random(8);
  TestWeight w = MakeWeight(random, DType::kInt4G32, 40, 96);
  std::vector<int32_t> order(96);
  for (int32_t c = 0; c < 96; ++c) order[c] = (c * 29 + 5) % 96;  // 29 and 96 are coprime
  TestWeight natural = w;  // its decoded values by input feature
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t c = 0; c < 96; ++c) natural.decoded[r * 96 + order[c]] = w.decoded[r * 96 + c];
  }
  std::vector<WeightSource> sources = {w.source()};
  sources[0].column_order = order;
  Matrix x = Matrix::RandomOf(random, 5, 96, /*pad=*/3);
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    auto packed = device->Pack(sources);
    REQUIRE(packed.ok());
    Matrix out = Multiply(*device, **packed, x.tensor());
    // Blocks of activations follow the stored order: any 32 of the row may share a scale.
    double largest = 0;
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < 96; ++c) largest = std::max<double>(largest, std::fabs(x(t, c)));
    }
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t r = 0; r < 40; ++r) {
        double weights = 0;
        for (int64_t c = 0; c < 96; ++c) weights += std::fabs(natural.decoded[r * 96 + c]);
        CHECK(std::fabs(out(t, r) - Expected(x, natural, t, r)) <=
              0.5001 * largest / 123.25 * weights);
      }
    }
    TestBatch batch({{{2, 2}}});
    batch.token_ids = {0, 39};
    REQUIRE(device->Plan(batch.view()).ok());
    Matrix rows(2, 96);
    REQUIRE(device->Run([&](Ops& ops) { ops.Embed(**packed, 1.0f, rows.tensor()); }).ok());
    for (int64_t c = 0; c < 96; ++c) CHECK(rows(1, c) == natural.decoded[39 * 96 + c]);
  }
}

TEST_CASE("Stacked matrices may each have their columns in another order", "[kernels][kernel]") {
  Random random(9);
  constexpr int64_t kCols = 128;
  std::vector<TestWeight> weights;
  std::vector<std::vector<int32_t>> orders = {{}, {}, {}};
  std::vector<WeightSource> sources;
  for (size_t i = 0; i < 3; ++i) {
    weights.push_back(MakeWeight(random, DType::kInt4G32, 40, kCols));
    for (int32_t c = 0; i > 0 && c < kCols; ++c) {
      orders[i].push_back((c * (i == 1 ? 29 : 77) + 5) % static_cast<int32_t>(kCols));
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    sources.push_back(weights[i].source());
    sources.back().column_order = orders[i];
  }
  Matrix x = Matrix::RandomOf(random, 5, kCols, /*pad=*/3);
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    auto stacked = device->Pack(sources);
    REQUIRE(stacked.ok());
    const Matrix all = Multiply(*device, **stacked, x.tensor());
    std::vector<Matrix> apart;
    apart.reserve(sources.size());
    for (const WeightSource& source : sources) {
      apart.push_back(Multiply(*device, **device->Pack({&source, 1}), x.tensor()));
    }
    Matrix gated(5, 40);
    auto pair = device->Pack(std::span(sources).subspan(1, 2));
    REQUIRE(pair.ok());
    REQUIRE(device
                ->Run([&](Ops& ops) {
                  ops.Linear({.x = x.tensor(),
                              .weight = pair->get(),
                              .epilogue = Epilogue::kGated,
                              .out = gated.tensor()});
                })
                .ok());
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t r = 0; r < 40; ++r) {
        for (size_t i = 0; i < 3; ++i) {
          CHECK(all(t, static_cast<int64_t>(i) * 40 + r) == apart[i](t, r));
        }
        CHECK(gated(t, r) == Approx(apart[1](t, r) * apart[2](t, r)));
      }
    }
  }
}

TEST_CASE("Pack refuses shapes that are not whole blocks or do not stack", "[kernels][unit]") {
  std::vector<NamedDevice> devices = CpuDevices(1);
  devices.push_back({"reference", CreateReferenceDevice()});
  std::vector<uint8_t> bytes(4096);
  for (auto& [name, device] : devices) {
    INFO(name);
    Device& target = *device;
    auto pack = [&](std::vector<WeightSource> sources) { return target.Pack(sources).status(); };
    absl::Status status = pack({{bytes.data(), DType::kQ4_0, 2, 33, "blk.0"}});
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find("blk.0") != std::string::npos);
    CHECK(absl::IsInvalidArgument(pack({})));
    CHECK(absl::IsInvalidArgument(pack({{nullptr, DType::kF32, 2, 2, "w"}})));
    CHECK(absl::IsInvalidArgument(pack({{bytes.data(), DType::kF32, 0, 2, "w"}})));
    CHECK(absl::IsInvalidArgument(
        pack({{bytes.data(), DType::kF32, int64_t{1} << 40, int64_t{1} << 40, "w"}})));
    CHECK(absl::IsInvalidArgument(
        pack({{bytes.data(), DType::kF32, 2, 2, "w"}, {bytes.data(), DType::kF32, 2, 3, "v"}})));
  }
}
}  // namespace
}  // namespace heddle::kernels::test
