// Products whose columns are summed in ranges (WeightSource::sum_borders): each range has the bits
// of a product of its own, and the sums are joined as a tree.
#include <span>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

Matrix ProductOf(Device& device, const WeightSource& source, Tensor x) {
  auto packed = device.Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix out(x.rows, source.rows);
  REQUIRE(device
              .Run([&](Ops& ops) {
                ops.Linear({.x = x, .weight = packed->get(), .out = out.tensor()});
              })
              .ok());
  return out;
}

// Columns [begin, end) of a weight as a matrix of its own.
TestWeight ColumnsOf(const TestWeight& w, int64_t begin, int64_t end) {
  TestWeight part = w;
  part.cols = end - begin;
  part.bytes.clear();
  for (int64_t r = 0; r < w.rows; ++r) {
    const auto row = w.bytes.begin() + r * RowBytes(w.dtype, w.cols);
    part.bytes.insert(part.bytes.end(), row + RowBytes(w.dtype, begin),
                      row + RowBytes(w.dtype, end));
  }
  return part;
}

// The sums of the ranges between borders, added as a tree; no rows if all are empty.
Matrix TreeOfProducts(Device& device, const TestWeight& w, Matrix& x,
                      std::span<const int64_t> borders) {
  const size_t count = borders.size() - 1;
  if (count == 1) {
    if (borders[0] == borders[1]) return {0, w.rows};
    const TestWeight part = ColumnsOf(w, borders[0], borders[1]);
    Tensor columns = x.tensor();
    columns.data = x.at(0, borders[0]);
    columns.cols = part.cols;
    return ProductOf(device, part.source(), columns);
  }
  Matrix first = TreeOfProducts(device, w, x, borders.first(count / 2 + 1));
  Matrix second = TreeOfProducts(device, w, x, borders.subspan(count / 2));
  if (first.num_rows() == 0) return second;
  for (int64_t t = 0; t < second.num_rows(); ++t) {
    for (int64_t r = 0; r < w.rows; ++r) *first.at(t, r) += second(t, r);
  }
  return first;
}

TEST_CASE("Ranges of columns are summed apart and joined as a tree, bit for bit",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    for (DType dtype : kAllTypes) {
      const int64_t block = Info(dtype).block_elements;
      const int64_t unit = block == 1 ? 37 : block < 256 ? 3 * block : block;
      for (const std::vector<int64_t>& units : std::vector<std::vector<int64_t>>{
               {0, 3, 5, 5, 6, 7, 8, 9, 9}, {0, 1, 1, 2, 2, 3, 4, 4, 5}, {0, 0, 0, 2, 3}, {0, 2}}) {
        std::vector<int64_t> borders;
        for (const int64_t u : units) borders.push_back(u * unit);
        Random random(23);
        const TestWeight w = MakeWeight(random, dtype, 139, borders.back());
        WeightSource source = w.source();
        source.sum_borders = borders;
        for (const int64_t rows : {1, 6, 70}) {
          INFO(name << " " << Info(dtype).name << ", " << borders.back() << " columns, " << rows
                    << " rows");
          Matrix x = Matrix::RandomOf(random, rows, w.cols, /*pad=*/2);
          CHECK(SameBits(ProductOf(*device, source, x.tensor()),
                         TreeOfProducts(*device, w, x, borders)));
        }
      }
    }
  }
}

TEST_CASE("Rows of a weight that is summed in ranges are read as they were", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name);
    Random random(5);
    const TestWeight w = MakeWeight(random, DType::kQ4_0, 40, 160);
    const std::vector<int64_t> borders = {0, 64, 64, 96, 160};
    WeightSource source = w.source();
    source.sum_borders = borders;
    auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    TestBatch batch({.sequences = {{.rows = 3, .context = 3}}});
    const std::vector<int32_t> tokens = {39, 0, 33};
    batch.token_ids = tokens;
    REQUIRE(device->Plan(batch.view()).ok());
    Matrix out(3, 160);
    REQUIRE(device->Run([&](Ops& ops) { ops.Embed(**packed, 1.0f, out.tensor()); }).ok());
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t c = 0; c < 160; ++c) {
        CHECK(out(t, c) ==
              w.decoded[static_cast<size_t>(tokens[static_cast<size_t>(t)] * 160 + c)]);
      }
    }
  }
}

TEST_CASE("Pack refuses ranges of sums that do not divide the columns", "[kernels][unit]") {
  std::vector<NamedDevice> devices = CpuDevices(1);
  devices.push_back({"reference", CreateReferenceDevice()});
  std::vector<uint8_t> bytes(4096);
  const std::vector<int32_t> order(96);
  for (auto& [name, device] : devices) {
    INFO(name);
    WeightSource source = {bytes.data(), DType::kQ4_0, 2, 96, "blk.0"};
    const auto pack = [&](const std::vector<int64_t>& borders) {
      source.sum_borders = borders;
      return device->Pack({&source, 1}).status();
    };
    CHECK(pack({0, 96}).ok());
    CHECK(pack({0, 0, 32, 96, 96}).ok());
    for (const std::vector<int64_t>& borders : std::vector<std::vector<int64_t>>{
             {0}, {0, 64}, {32, 96}, {0, 32, 64, 96}, {0, 48, 96}, {0, 64, 32, 96, 96}}) {
      const absl::Status status = pack(borders);
      CHECK(absl::IsInvalidArgument(status));
      CHECK(std::string(status.message()).find("blk.0") != std::string::npos);
    }
    source.column_order = order;
    CHECK(absl::IsInvalidArgument(pack({0, 32, 96})));
  }
}

}  // namespace
}  // namespace heddle::kernels::test
