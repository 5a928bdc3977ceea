// Rows of tables for the tokens of a batch: embeddings, positions, types and segments.
#include <span>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/products.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

TEST_CASE("Embed decodes rows of the same packed weight exactly", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : kAllTypes) {
      INFO(name << " " << Info(dtype).name);
      Random random(6);
      const int64_t cols = Columns(dtype, 96);
      TestWeight w = MakeWeight(random, dtype, 37, cols);
      std::vector<WeightSource> sources = {w.source()};
      auto packed = device->Pack(sources);
      REQUIRE(packed.ok());
      TestBatch batch({{{9, 9}}});
      batch.token_ids = {0, 36, 1, 31, 32, 15, 16, 8, 7};
      REQUIRE(device->Plan(batch.view()).ok());
      Matrix out(9, cols, /*pad=*/1);
      REQUIRE(device->Run([&](Ops& ops) { ops.Embed(**packed, 2.0f, out.tensor()); }).ok());
      for (int64_t t = 0; t < 9; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
          REQUIRE(out(t, c) ==
                  2.0f * w.decoded[static_cast<size_t>(batch.token_ids[t] * cols + c)]);
        }
      }
      REQUIRE(device->Run([&](Ops& ops) { ops.AddPositions(**packed, 2, out.tensor()); }).ok());
      CHECK(out(3, 5) == 2.0f * w.decoded[31 * cols + 5] + w.decoded[5 * cols + 5]);
    }
  }
}

TEST_CASE("Types of tokens add rows of a table", "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    Random random(8);
    TestWeight w = MakeWeight(random, DType::kF32, 2, 70);
    std::vector<WeightSource> both = {w.source()};
    std::vector<WeightSource> one = both;
    one[0].rows = 1;
    auto table = device->Pack(both);
    auto short_table = device->Pack(one);
    REQUIRE((table.ok() && short_table.ok()));
    TestBatch batch({{{3, 3}}});
    HostBatch view = batch.view();
    Matrix out(3, 70, /*pad=*/1);
    // Without types all are 0; a type that the table lacks counts as 0.
    REQUIRE(device->Plan(view).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.AddTokenTypes(**table, out.tensor()); }).ok());
    CHECK(out(2, 69) == w.decoded[69]);
    const std::vector<int32_t> types = {0, 1, 1};
    view.token_types = types;
    REQUIRE(device->Plan(view).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.AddTokenTypes(**table, out.tensor()); }).ok());
    CHECK(out(0, 69) == 2.0f * w.decoded[69]);
    CHECK(out(2, 69) == w.decoded[69] + w.decoded[139]);
    REQUIRE(device->Run([&](Ops& ops) { ops.AddTokenTypes(**short_table, out.tensor()); }).ok());
    CHECK(out(2, 69) == w.decoded[69] + w.decoded[139] + w.decoded[69]);
    const std::vector<int32_t> wrong = {0, 2, 1};
    view.token_types = wrong;
    CHECK_FALSE(device->Plan(view).ok());
    view.token_types = std::span<const int32_t>(types).first(2);
    CHECK_FALSE(device->Plan(view).ok());
  }
}

TEST_CASE("Segments are added to each head of a row, also within a wider one",
          "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    const std::vector<float> table = {1, 2, 3, 10, 20, 30};
    TestBatch batch({{{3, 3}}});
    HostBatch view = batch.view();
    Matrix x(3, 7, /*pad=*/1);
    Tensor heads = x.tensor();
    heads.data = static_cast<float*>(heads.data) + 1;
    heads.cols = 6;
    const SegmentArgs args{.table = table.data(), .n_segments = 2, .width = 3, .x = heads};
    REQUIRE(device->Plan(view).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.AddSegments(args); }).ok());
    const float plain = x(1, 1);
    CHECK(x(1, 3) == 3);
    CHECK(x(1, 4) == 1);
    const std::vector<int32_t> segments = {0, 1, 0};
    view.segments = segments;
    REQUIRE(device->Plan(view).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.AddSegments(args); }).ok());
    CHECK(x(0, 6) == 6);
    CHECK(x(1, 1) == plain + 10);
    CHECK(x(1, 6) == 33);
    CHECK(x(1, 0) == 0);
    const std::vector<int32_t> wrong = {0, -1, 0};
    view.segments = wrong;
    CHECK_FALSE(device->Plan(view).ok());
    view.segments = std::span<const int32_t>(segments).first(2);
    CHECK_FALSE(device->Plan(view).ok());
  }
}
}  // namespace
}  // namespace heddle::kernels::test
