// Products of BF16 by tiles: the kernel over plain tiles on any processor, and the amx level, where
// this machine has it, against the same bit for bit.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <thread>
#include <vector>

#include "base/check.h"
#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/dtype.h"
#include "kernels/kv_element.h"
#include "tests/kernels/testing.h"

#include "kernels/cpu/linear/tiles_plain.h"

#include "kernels/cpu/linear/linear_tiles.h"

namespace heddle::kernels::test {
namespace {

using cpu::Bf16TileProduct;
using cpu::PlainTiles;

constexpr int64_t kOutputs = 32;  // of a panel

uint16_t ToBf16(float x) {
  uint16_t bits;
  StoreElement(DType::kBF16, &bits, 0, x);
  return bits;
}
float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// A product's operands as bits of BF16: x [rows, cols] and W [kOutputs, cols].
struct Product {
  int64_t rows;
  int64_t cols;
  std::vector<uint16_t> x, w;
};

Product RandomProduct(Random& random, int64_t rows, int64_t cols) {
  Product product{rows, cols, {}, {}};
  for (float value : random.Normals(rows * cols)) product.x.push_back(ToBf16(value));
  for (float value : random.Normals(kOutputs * cols)) product.w.push_back(ToBf16(value));
  return product;
}

std::vector<uint16_t> PanelOf(const Product& p) {
  std::vector<uint16_t> panel(static_cast<size_t>((p.cols + 1) / 2 * kOutputs * 2));
  for (int64_t r = 0; r < kOutputs; ++r) {
    for (int64_t k = 0; k < p.cols; ++k) {
      panel[(k / 2 * kOutputs + r) * 2 + k % 2] = p.w[r * p.cols + k];
    }
  }
  return panel;
}

// Rows [first, first + count) of x as a tile of tile_rows rows.
std::vector<uint16_t> TileOf(const Product& p, int64_t first, int64_t count, int64_t tile_rows) {
  std::vector<uint16_t> tile(static_cast<size_t>((p.cols + 31) / 32 * tile_rows * 32));
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t k = 0; k < p.cols; ++k) {
      tile[(k / 32 * tile_rows + m) * 32 + k % 32] = p.x[(first + m) * p.cols + k];
    }
  }
  return tile;
}

// All rows of a product by tiles of kRows rows.
template <int kRows>
Matrix ByPlainTiles(const Product& p) {
  const std::vector<uint16_t> panel = PanelOf(p);
  Matrix out(p.rows, kOutputs);
  for (int64_t first = 0; first < p.rows; first += kRows) {
    const int64_t count = std::min<int64_t>(kRows, p.rows - first);
    std::vector<float> sums(kRows * kOutputs);
    const std::vector<uint16_t> tile = TileOf(p, first, count, kRows);
    cpu::PanelProductArgs args{};
    args.panels = panel.data();
    args.num_panels = 1;
    args.tiles = tile.data();
    args.num_tiles = 1;
    args.tile_rows = args.last_rows = kRows;
    args.cols = p.cols;
    args.sums = sums.data();
    cpu::TileRegisters registers;
    Bf16TileProduct<PlainTiles>::Multiply(args, registers);
    std::copy_n(sums.data(), count * kOutputs, out.at(first, 0));
  }
  return out;
}

// The same by a device of the amx level.
Matrix ByDevice(Device& device, const Product& p) {
  const WeightSource source{reinterpret_cast<const uint8_t*>(p.w.data()), DType::kBF16, kOutputs,
                            p.cols, "tiles"};
  auto packed = device.Pack({&source, 1});
  HEDDLE_CHECK(packed.ok(), "no weight");
  Matrix x(p.rows, p.cols), out(p.rows, kOutputs);
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t k = 0; k < p.cols; ++k) *x.at(t, k) = FromBf16(p.x[t * p.cols + k]);
  }
  const absl::Status status = device.Run([&](Ops& ops) {
    ops.Linear({.x = x.tensor(), .weight = packed->get(), .out = out.tensor()});
  });
  HEDDLE_CHECK(status.ok(), "no product");
  return out;
}

// The amx level, or nullptr and a line that says so.
std::unique_ptr<Device> AmxDevice(int32_t threads) {
  auto device = CreateCpuDevice({threads, "amx", false});
  if (device.ok()) return std::move(device).value();
  std::cout << "skipped: " << device.status().message() << '\n';
  return nullptr;
}

// Values that rounding, flushing and limits treat apart: denormals, the least normals, whose
// products vanish, infinities and NaN, among ordinary ones.
void Sprinkle(Random& random, std::vector<uint16_t>& values, bool finite) {
  constexpr uint16_t kFinite[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x8085, 0x1f80, 0x9fc0};
  constexpr uint16_t kOthers[] = {0x7f80, 0xff80, 0x7fc0, 0x7f7f};
  for (uint16_t& value : values) {
    if (random.Below(3) == 0) value = kFinite[random.Below(8)];
    if (!finite && random.Below(200) == 0) value = kOthers[random.Below(4)];
  }
}

// The same bits, or NaN in both: which of several NaN comes out is not documented.
bool SameNumbers(const Matrix& a, const Matrix& b) {
  for (int64_t t = 0; t < a.num_rows(); ++t) {
    for (int64_t c = 0; c < a.num_cols(); ++c) {
      const bool both_nan = std::isnan(a(t, c)) && std::isnan(b(t, c));
      if (!both_nan && std::bit_cast<uint32_t>(a(t, c)) != std::bit_cast<uint32_t>(b(t, c))) {
        return false;
      }
    }
  }
  return true;
}

TEST_CASE("A product by tiles agrees with double sums for odd columns and rows",
          "[kernels][kernel]") {
  for (int64_t cols : {1, 2, 3, 31, 32, 33, 64, 95, 257, 768}) {
    for (int64_t rows : {1, 5, 16, 17, 32, 33}) {
      INFO(rows << " rows of " << cols);
      Random random(static_cast<uint32_t>(cols));
      const Product p = RandomProduct(random, rows, cols);
      const Matrix found = ByPlainTiles<32>(p);
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t r = 0; r < kOutputs; ++r) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < cols; ++k) {
            const double term = double{FromBf16(p.x[t * cols + k])} * FromBf16(p.w[r * cols + k]);
            sum += term;
            magnitude += std::fabs(term);
          }
          // As in linear_test.cc: independent roundings of so many terms.
          const double slack = 4 * std::sqrt(static_cast<double>(cols)) *
                               std::numeric_limits<float>::epsilon() * magnitude;
          CHECK(std::fabs(found(t, r) - sum) <= slack + 1e-30);
        }
      }
    }
  }
}

TEST_CASE("A row has the same bits in tiles of every size", "[kernels][kernel]") {
  Random random(3);
  Product p = RandomProduct(random, 33, 353);
  Sprinkle(random, p.x, /*finite=*/true);
  Sprinkle(random, p.w, /*finite=*/true);
  const Matrix expected = ByPlainTiles<1>(p);
  CHECK(SameBits(ByPlainTiles<2>(p), expected));
  CHECK(SameBits(ByPlainTiles<4>(p), expected));
  CHECK(SameBits(ByPlainTiles<8>(p), expected));
  CHECK(SameBits(ByPlainTiles<16>(p), expected));
  CHECK(SameBits(ByPlainTiles<32>(p), expected));
}

TEST_CASE("Several tiles and panels at once give the bits of each alone", "[kernels][kernel]") {
  constexpr int64_t kRows = 80, kPanels = 3;
  for (int64_t cols : {33, 256, 610}) {
    INFO(cols << " columns");
    Random random(static_cast<uint32_t>(cols));
    const Product first = RandomProduct(random, kRows, cols);
    std::vector<uint16_t> panels, tiles;
    std::vector<Matrix> expected;
    for (int64_t i = 0; i < kPanels; ++i) {
      Product p = RandomProduct(random, kRows, cols);
      p.x = first.x;
      const std::vector<uint16_t> panel = PanelOf(p);
      panels.insert(panels.end(), panel.begin(), panel.end());
      expected.push_back(ByPlainTiles<1>(p));
    }
    for (int64_t row : {0, 32, 64}) {
      const int64_t rows = std::min<int64_t>(32, kRows - row);
      const std::vector<uint16_t> tile = TileOf(first, row, rows, rows);
      tiles.insert(tiles.end(), tile.begin(), tile.end());
    }
    std::vector<float> sums(kPanels * kRows * kOutputs, -1.0f);
    cpu::PanelProductArgs args{};
    args.panels = panels.data();
    args.panel_bytes = static_cast<int64_t>(panels.size()) * 2 / kPanels;
    args.num_panels = kPanels;
    args.tiles = tiles.data();
    args.tile_bytes = (cols + 31) / 32 * 32 * 64;
    args.num_tiles = 3;
    args.tile_rows = 32;
    args.last_rows = 16;
    args.cols = cols;
    args.sums = sums.data();
    args.sums_stride = kRows * kOutputs;
    cpu::TileRegisters registers;
    Bf16TileProduct<PlainTiles>::Multiply(args, registers);
    for (int64_t i = 0; i < kPanels; ++i) {
      const float* found = sums.data() + i * kRows * kOutputs;
      CHECK(std::equal(found, found + kRows * kOutputs, expected[i].at(0, 0)));
    }
  }
}

TEST_CASE("A row has the same bits alone and among many with several panels", "[kernels][kernel]") {
  const std::unique_ptr<Device> device = AmxDevice(2);
  if (device == nullptr) return;
  constexpr int64_t kRows = 530, kCols = 3100, kOut = 330;
  Random random(8);
  Matrix w = Matrix::RandomOf(random, kOut, kCols);
  std::vector<uint16_t> bits;
  for (int64_t r = 0; r < kOut; ++r) {
    for (int64_t k = 0; k < kCols; ++k) bits.push_back(ToBf16(w(r, k)));
  }
  const WeightSource source{reinterpret_cast<const uint8_t*>(bits.data()), DType::kBF16, kOut,
                            kCols, "many"};
  auto packed = device->Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix x = Matrix::RandomOf(random, kRows, kCols);
  auto product = [&](int64_t first, int64_t rows) {
    Matrix some(rows, kCols), out(rows, kOut);
    std::copy_n(x.at(first, 0), rows * kCols, some.at(0, 0));
    REQUIRE(device
                ->Run([&](Ops& ops) {
                  ops.Linear({.x = some.tensor(), .weight = packed->get(), .out = out.tensor()});
                })
                .ok());
    return out;
  };
  Matrix all = product(0, kRows);
  for (int64_t row : {0, 299, 511, 512, 529}) {
    INFO("row " << row);
    CHECK(std::equal(all.at(row, 0), all.at(row, 0) + kOut, product(row, 1).at(0, 0)));
  }
}

TEST_CASE("Even and odd columns of a tile are summed apart and added to what was before",
          "[kernels][kernel]") {
  Product p{1, 34, std::vector<uint16_t>(34, ToBf16(1)), std::vector<uint16_t>(34 * kOutputs)};
  // In the order of columns 1 would be lost beside 2^24: even columns are 2^24 and -2^24.
  p.w[0] = ToBf16(0x1p24f);
  p.w[1] = ToBf16(1);
  p.w[2] = ToBf16(-0x1p24f);
  p.w[32] = ToBf16(0x1p24f);  // of the second tile, to which the first's sum is lost
  CHECK(ByPlainTiles<1>(p)(0, 0) == 0x1p24f);
  p.w[32] = 0;
  CHECK(ByPlainTiles<1>(p)(0, 0) == 1);
}

TEST_CASE("The processor's tiles give the bits of plain ones", "[kernels][kernel]") {
  const std::unique_ptr<Device> device = AmxDevice(2);
  if (device == nullptr) return;
  for (int64_t cols : {1, 2, 31, 33, 64, 255, 256, 257, 800}) {
    for (int64_t rows : {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 70}) {
      INFO(rows << " rows of " << cols);
      Random random(static_cast<uint32_t>(cols * 100 + rows));
      Product p = RandomProduct(random, rows, cols);
      CHECK(SameBits(ByDevice(*device, p), ByPlainTiles<32>(p)));
      Sprinkle(random, p.x, /*finite=*/true);
      Sprinkle(random, p.w, /*finite=*/true);
      CHECK(SameBits(ByDevice(*device, p), ByPlainTiles<32>(p)));
      Sprinkle(random, p.x, /*finite=*/false);
      Sprinkle(random, p.w, /*finite=*/false);
      CHECK(SameNumbers(ByDevice(*device, p), ByPlainTiles<32>(p)));
    }
  }
}

// A matrix of random BF16.
std::unique_ptr<PackedWeight> PackRandom(Device& device, Random& random, int64_t rows, int64_t cols,
                                         int32_t sources) {
  std::vector<uint16_t> bits;
  for (float value : random.Normals(rows * cols)) bits.push_back(ToBf16(value));
  const WeightSource source{reinterpret_cast<const uint8_t*>(bits.data()), DType::kBF16, rows, cols,
                            "random"};
  const std::vector<WeightSource> stacked(static_cast<size_t>(sources), source);
  auto packed = device.Pack(stacked);
  HEDDLE_CHECK(packed.ok(), "no weight");
  return std::move(packed).value();
}

TEST_CASE("Outputs that are left as tiles for their reader give the bits of those in memory",
          "[kernels][kernel]") {
  const std::unique_ptr<Device> device = AmxDevice(2);
  if (device == nullptr) return;
  constexpr int64_t kHidden = 70;
  for (const auto& [inter, gated] : {std::pair(96, false), {96, true}, {64, true}, {81, false}}) {
    Random random(static_cast<uint32_t>(inter));
    const auto up = PackRandom(*device, random, inter, kHidden, gated ? 2 : 1);
    const auto down = PackRandom(*device, random, kHidden, inter, 1);
    const std::vector<float> bias = random.Normals(2 * inter);
    for (int64_t rows : {1, 3, 16, 17, 32, 33, 70, 530}) {
      INFO(rows << " rows, " << inter << " wide, " << (gated ? "gated" : "plain"));
      Matrix x = Matrix::RandomOf(random, rows, kHidden), inner(rows, inter);
      auto block = [&](const PackedWeight* reader) {
        Matrix out(rows, kHidden);
        const absl::Status status = device->Run([&](Ops& ops) {
          ops.Linear({.x = x.tensor(),
                      .weight = up.get(),
                      .bias = bias.data(),
                      .epilogue = gated ? Epilogue::kGated : Epilogue::kNone,
                      .activation = Activation::kGelu,
                      .out = inner.tensor(),
                      .reader = reader});
          ops.Linear({.x = inner.tensor(), .weight = down.get(), .out = out.tensor()});
        });
        HEDDLE_CHECK(status.ok(), "no product");
        return out;
      };
      CHECK(SameBits(block(down.get()), block(nullptr)));
    }
  }
}

TEST_CASE("A thread that the system moves keeps its tiles", "[kernels][kernel]") {
  const std::unique_ptr<Device> device = AmxDevice(1);
  if (device == nullptr) return;
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
  const pid_t mover_of = 0;  // the thread that multiplies
  Random random(5);
  const Product p = RandomProduct(random, 70, 2048);
  const Matrix expected = ByPlainTiles<32>(p);
  // Others multiply something else on the same processors, so that tiles are saved and restored.
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&stop] {
      auto own = CreateCpuDevice({1, "amx", false});
      Random own_random(6);
      const Product q = RandomProduct(own_random, 40, 512);
      while (!stop.load()) ByDevice(**own, q);
    });
  }
  bool same = true;
  for (int i = 0; i < 60; ++i) {
    int cpu = i % CPU_SETSIZE;
    while (!CPU_ISSET(cpu, &all)) cpu = (cpu + 1) % CPU_SETSIZE;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    same = same && sched_setaffinity(mover_of, sizeof(one), &one) == 0;
    same = same && SameBits(ByDevice(*device, p), expected);
  }
  stop.store(true);
  for (std::thread& other : others) other.join();
  CHECK(same);
  CHECK(sched_setaffinity(mover_of, sizeof(all), &all) == 0);
}

}  // namespace
}  // namespace heddle::kernels::test
