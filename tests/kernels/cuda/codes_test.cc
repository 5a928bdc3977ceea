// Products of 8-bit codes by a library on the emulated CUDA device: FP8 and integer weights with
// one scale per row or, FP8, per 128 rows and columns; rows of x quantised on the way.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/linear/cuda_weight.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/cuda/quantised.h"

namespace heddle::kernels::test {
namespace {

using cuda::WeightLayout;

struct Case {
  DType dtype = DType::kF8G128;
  int64_t n = 40, cols = 256, rows = 48;
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  bool bias = false;
  bool out_f32 = false;
  int64_t workspace_bytes = int64_t{4} << 20;
  cuda::emulate::Machine machine = {.has_library = true};
  bool quantises = true;  // whether rows of x are expected to be
  bool takes_int8_x = true;
  bool tiled = false;  // one scale per 128 rows and columns
  bool bulk = false;   // by our own kernel, else by the library

  CodeScales scales() const {
    if (tiled) return CodeScales::kF8Tiles;
    return dtype == DType::kInt8G32 || dtype == DType::kInt8G128 ? CodeScales::kInt8Rows
                                                                 : CodeScales::kF8Rows;
  }
};

Matrix Multiply(Device& device, const Case& c, DType act, const TestWeight& weight, Matrix x,
                Matrix out, const std::vector<float>& bias) {
  WeightSource source = weight.source();
  source.takes_int8_x = c.takes_int8_x;
  auto packed = device.Pack({&source, 1});
  REQUIRE(packed.ok());
  const bool on_host = act == DType::kF32;
  Activations x_device(act, x, on_host ? 0 : 8);
  Activations out_device(c.out_f32 ? DType::kF32 : act, out, 3);
  MustRun(device, [&](Ops& ops) {
    ops.Linear({.x = x_device.tensor(),
                .weight = packed->get(),
                .bias = c.bias ? bias.data() : nullptr,
                .epilogue = c.epilogue,
                .activation = c.activation,
                .out = out_device.tensor(),
                .out_f32 = c.out_f32});
  });
  CHECK(out_device.GapsIntact());
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    for (int64_t r = 0; r < out.num_cols(); ++r) *out.at(t, r) = out_device(t, r);
  }
  return out;
}

// A product with row r of the weight, and its allowed error: F32 sums of single products, BF16 on
// the way to an epilogue and, if codes are not multiplied, weights in BF16.
struct Product {
  double value, error;
};
Product ProductAt(const Case& c, const TestWeight& weight, const Matrix& x,
                  const std::vector<float>& bias, int64_t t, int64_t r) {
  double value = 0, magnitude = 1;
  for (int64_t k = 0; k < c.cols; ++k) {
    const double term = static_cast<double>(x(t, k)) * weight.decoded[r * c.cols + k];
    value += term;
    magnitude += std::fabs(term);
  }
  const double rounded = c.n > 32 ? std::fabs(value) * 0x1p-9 : 0;
  const double weights = c.n > 32 && !c.quantises ? magnitude * 0x1p-8 : 0;
  if (c.bias) value += bias[static_cast<size_t>(r)];
  return {value, 0.002 * std::sqrt(magnitude) + 0.01 + rounded + weights};
}

// The allowed error of output r, besides its own rounding.
double AllowedAt(const Case& c, const TestWeight& weight, const Matrix& x,
                 const std::vector<float>& bias, int64_t t, int64_t r) {
  const Product y = ProductAt(c, weight, x, bias, t, r);
  if (c.epilogue != Epilogue::kGated) return 1.2 * y.error;  // activations rise by 1.13 at most
  const Product up = ProductAt(c, weight, x, bias, t, r + c.rows / 2);
  const double gate = std::fabs(y.value) / (1 + std::exp(-y.value)) + 1.2 * y.error;
  return 1.2 * y.error * (std::fabs(up.value) + up.error) + gate * up.error;
}

void Check(const Case& c) {
  Random random(static_cast<uint32_t>(c.n * 7919 + c.cols + c.rows));
  const TestWeight weight = c.tiled ? MakeTileScaledWeight(random, c.dtype, c.rows, c.cols)
                                    : MakeRowScaledWeight(random, c.dtype, c.rows, c.cols);
  Matrix x = Matrix::RandomOf(random, c.n, c.cols);
  const int64_t out_cols = c.epilogue == Epilogue::kGated ? c.rows / 2 : c.rows;
  Matrix out = Matrix::RandomOf(random, c.n, out_cols);
  const std::vector<float> bias = random.Normals(c.rows);
  { Activations rounded(DType::kBF16, x); }
  { Activations rounded(c.out_f32 ? DType::kF32 : DType::kBF16, out); }
  auto reference = CreateReferenceDevice();
  Case plain = c;
  plain.out_f32 = false;
  const Matrix expected = Multiply(*reference, plain, DType::kF32, weight,
                                   c.quantises ? Quantised(x, c.scales()) : x, out, bias);
  cuda::emulate::SetMachine(c.machine);
  auto device = CreateCudaDevice(
      {.workspace_bytes = c.workspace_bytes, .graphs = false, .warpgroups = c.bulk});
  cuda::emulate::SetMachine({});
  REQUIRE(device.ok());
  const int64_t copies = cuda::emulate::TileCopies();
  const Matrix found = Multiply(**device, c, DType::kBF16, weight, x, out, bias);
  CHECK((cuda::emulate::TileCopies() > copies) == c.bulk);
  INFO(Info(c.dtype).name << " x [" << c.n << ", " << c.cols << "] W [" << c.rows << ", " << c.cols
                          << "] epilogue " << static_cast<int>(c.epilogue)
                          << (c.tiled ? " tiled" : "") << (c.bulk ? " bulk" : ""));
  const Matrix seen = c.quantises ? Quantised(x, c.scales()) : x;
  double worst = 0;
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t r = 0; r < out_cols; ++r) {
      const double allowed =
          2 * RoundingOf(DType::kBF16, expected(t, r)) + AllowedAt(c, weight, seen, bias, t, r);
      worst =
          std::max(worst, std::fabs(static_cast<double>(found(t, r)) - expected(t, r)) / allowed);
    }
  }
  CHECK(worst <= 1);
}

WeightLayout LayoutOfPacked(Device& device, const WeightSource& source) {
  auto packed = device.Pack({&source, 1});
  REQUIRE(packed.ok());
  return cuda::ViewOf(**packed).layout;
}

TEST_CASE("Rows with one scale are kept without scales of blocks", "[cuda]") {
  Random random(1);
  auto device = EmulatedDevice(DType::kBF16);
  for (DType dtype : {DType::kF8G32, DType::kF8G128}) {
    CHECK(LayoutOfPacked(*device, MakeRowScaledWeight(random, dtype, 5, 256).source()) ==
          WeightLayout::kF8Row);
    CHECK(LayoutOfPacked(*device, MakeWeight(random, dtype, 5, 256).source()) == WeightLayout::kF8);
  }
  TestWeight integers = MakeRowScaledWeight(random, DType::kInt8G32, 5, 256);
  CHECK(LayoutOfPacked(*device, integers.source()) == WeightLayout::kInt8Row);
  integers.bytes[static_cast<size_t>(4 * RowBytes(DType::kInt8G32, 256) + 36 + 4)] = 1;
  CHECK(LayoutOfPacked(*device, integers.source()) == WeightLayout::kInt8Offset);  // a zero point
  // One block of the last row differs.
  TestWeight floats = MakeRowScaledWeight(random, DType::kF8G32, 70, 64);
  const float other = 3.0f;
  std::memcpy(&floats.bytes[floats.bytes.size() - 36], &other, 4);
  CHECK(LayoutOfPacked(*device, floats.source()) == WeightLayout::kF8);
  const WeightSource both[] = {integers.source(), floats.source()};
  CHECK(cuda::LayoutOf(both, DType::kBF16) == WeightLayout::kBF16);
  auto exact = EmulatedDevice(DType::kF32);
  CHECK(LayoutOfPacked(*exact, MakeRowScaledWeight(random, DType::kF8G32, 5, 64).source()) ==
        WeightLayout::kF32);
}

TEST_CASE("Rows with one scale take a byte for each column and four for the scale", "[cuda]") {
  Random random(2);
  auto device = EmulatedDevice(DType::kBF16);
  const TestWeight weight = MakeRowScaledWeight(random, DType::kF8G128, 64, 512);
  const WeightSource source = weight.source();
  auto packed = device->Pack({&source, 1});
  REQUIRE(packed.ok());
  CHECK((*packed)->bytes == 64 * (512 + 4));
  CHECK((*packed)->bytes <= 64 * device->PackedRowBytes(DType::kF8G128, 512));
}

TEST_CASE("Tiles of 128 rows and columns with one scale are kept with that scale", "[cuda]") {
  Random random(6);
  auto device = EmulatedDevice(DType::kBF16);
  for (auto [dtype, cols] : {std::pair{DType::kF8G32, int64_t{288}}, {DType::kF8G128, 384}}) {
    for (int64_t rows : {130, 256, 300}) {
      TestWeight weight = MakeTileScaledWeight(random, dtype, rows, cols);
      CHECK(LayoutOfPacked(*device, weight.source()) == WeightLayout::kF8Block);
      const float other = 3.0f;  // in the last row and column
      std::memcpy(&weight.bytes[weight.bytes.size() - Info(dtype).block_bytes], &other, 4);
      CHECK(LayoutOfPacked(*device, weight.source()) == WeightLayout::kF8);
    }
  }
  const TestWeight whole = MakeTileScaledWeight(random, DType::kF8G128, 256, 384);
  const TestWeight part = MakeTileScaledWeight(random, DType::kF8G128, 200, 384);
  auto layout_of = [&](const TestWeight& upper, const TestWeight& lower) {
    const WeightSource sources[] = {upper.source(), lower.source()};
    auto packed = device->Pack(sources);
    REQUIRE(packed.ok());
    return cuda::ViewOf(**packed).layout;
  };
  CHECK(layout_of(whole, part) == WeightLayout::kF8Block);
  CHECK(layout_of(part, whole) == WeightLayout::kF8);  // the second one's tiles begin at row 200
  const WeightSource source = part.source();
  auto packed = device->Pack({&source, 1});
  REQUIRE(packed.ok());
  CHECK((*packed)->bytes == 200 * 384 + 2 * 4 * 4);  // two rows of three scales, in strides of four
  auto exact = EmulatedDevice(DType::kF32);
  CHECK(LayoutOfPacked(*exact, part.source()) == WeightLayout::kF32);
}

TEST_CASE("Few rows multiply weights with scales of tiles as the reference does", "[cuda]") {
  for (int64_t n : {1, 6, 12, 32}) {
    Check({.n = n, .cols = 384, .rows = 300, .quantises = false, .tiled = true});
    Check({.dtype = DType::kF8G32,
           .n = n,
           .cols = 288,
           .rows = 274,
           .epilogue = Epilogue::kGated,
           .activation = Activation::kSilu,
           .quantises = false,
           .tiled = true});
  }
}

TEST_CASE("Experts with scales of tiles are those of the reference", "[cuda]") {
  constexpr int32_t kExperts = 2;
  constexpr int64_t kRows = 9, kWide = 256, kInner = 128;
  Random random(7);
  std::vector<TestWeight> ups, downs;
  for (int32_t e = 0; e < kExperts; ++e) {
    for (int part = 0; part < 2; ++part) {
      ups.push_back(MakeTileScaledWeight(random, DType::kF8G128, kInner, kWide));
    }
    downs.push_back(MakeTileScaledWeight(random, DType::kF8G128, kWide, kInner));
  }
  std::vector<int32_t> experts;
  std::vector<float> weights(static_cast<size_t>(kRows), 0.7f);
  for (int64_t t = 0; t < kRows; ++t) experts.push_back(random.Below(kExperts));
  Matrix x = Matrix::RandomOf(random, kRows, kWide);
  Matrix inner(kRows, kInner), rows(kRows, kWide), zeros(kRows, kWide);
  { Activations rounded(DType::kBF16, x); }
  auto run = [&](Device& device, DType type) {
    Activations own_x(type, x), own_inner(type, inner), own_rows(type, rows), out(type, zeros);
    auto pack = [&](const std::vector<TestWeight>& all) {
      std::vector<WeightSource> sources;
      sources.reserve(all.size());
      for (const TestWeight& weight : all) sources.push_back(weight.source());
      auto packed = device.PackStack(sources, kExperts);
      REQUIRE(packed.ok());
      return std::move(*packed);
    };
    auto up = pack(ups), down = pack(downs);
    if (type == DType::kBF16) CHECK(cuda::ViewOf(*up).layout == WeightLayout::kF8Block);
    MustRun(device, [&](Ops& ops) {
      ops.ExpertMix({.x = own_x.tensor(),
                     .experts = experts.data(),
                     .weights = weights.data(),
                     .top_k = 1,
                     .up = up.get(),
                     .down = down.get(),
                     .activation = Activation::kSilu,
                     .inner = own_inner.tensor(),
                     .rows = own_rows.tensor(),
                     .out = out.tensor()});
    });
    return out;
  };
  const Activations expected = run(*CreateReferenceDevice(), DType::kF32);
  const Activations found = run(*EmulatedDevice(DType::kBF16), DType::kBF16);
  double error = 0, size = 0;
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t c = 0; c < kWide; ++c) {
      error = std::max<double>(error, std::fabs(found(t, c) - expected(t, c)));
      size = std::max<double>(size, std::fabs(expected(t, c)));
    }
  }
  CHECK(error < size * 4 * 0x1p-8);  // as in experts_test.cc
}

TEST_CASE("Few rows multiply weights with one scale per row as the reference does", "[cuda]") {
  for (DType dtype : {DType::kF8G32, DType::kF8G128, DType::kInt8G32, DType::kInt8G128}) {
    for (int64_t n : {1, 5, 9, 17, 32}) {
      Check({.dtype = dtype, .n = n, .cols = 384, .rows = 37, .quantises = false});
    }
  }
  Check({.n = 3,
         .rows = 42,
         .epilogue = Epilogue::kGated,
         .activation = Activation::kSilu,
         .bias = true,
         .quantises = false});
}

TEST_CASE("Many rows are quantised and multiplied as codes, with every epilogue", "[cuda]") {
  for (DType dtype : {DType::kF8G32, DType::kF8G128, DType::kInt8G32}) {
    for (bool scales_rows : {true, false}) {
      Case c{.dtype = dtype, .machine = {.has_library = true, .scales_rows = scales_rows}};
      Check(c);
      c.cols = 288;  // not whole groups of 64
      if (dtype != DType::kF8G128) Check(c);
      c.cols = 256;
      c.out_f32 = true;
      Check(c);
      c.out_f32 = false;
      c.epilogue = Epilogue::kAdd;
      Check(c);
      c.bias = true;
      Check(c);
      c.epilogue = Epilogue::kNone;
      c.activation = Activation::kGelu;
      Check(c);
      c.epilogue = Epilogue::kGated;
      c.activation = Activation::kSilu;
      Check(c);
      c.workspace_bytes = 16 << 10;  // some rows at a time
      Check(c);
    }
  }
}

TEST_CASE("Scales of tiles meet rows quantised per 128 columns, with every epilogue", "[cuda]") {
  for (auto [dtype, cols] : {std::pair{DType::kF8G32, int64_t{288}}, {DType::kF8G128, 384}}) {
    for (int64_t n : {33, 40, 47}) {  // whole multiples of 8, and others, which pass through memory
      Case c{.dtype = dtype, .n = n, .cols = cols, .rows = 272, .tiled = true};
      Check(c);
      c.out_f32 = true;
      Check(c);
      c.out_f32 = false;
      c.epilogue = Epilogue::kAdd;
      Check(c);
      c.bias = true;
      c.workspace_bytes = 16 << 10;  // some rows at a time
      Check(c);
      c.epilogue = Epilogue::kGated;
      c.activation = Activation::kSilu;
      Check(c);
    }
  }
}

// Blocks are of 64, 96, 128, 160 and 208 rows of x; more are several blocks.
TEST_CASE("Rows, columns and outputs of FP8 by bulk copies need not fill blocks", "[cuda][bulk]") {
  for (int64_t n : {33, 64, 65, 97, 129, 161, 208, 209}) Check({.n = n, .rows = 48, .bulk = true});
  for (int64_t rows : {16, 64, 272, 528}) Check({.n = 35, .cols = 128, .rows = rows, .bulk = true});
  for (int64_t cols : {32, 64, 96, 288, 416}) {
    Check({.dtype = DType::kF8G32, .n = 40, .cols = cols, .bulk = true});
  }
  // More stages than are under way at once, in parts that add up, and in one.
  Check({.n = 70, .cols = 1408, .rows = 80, .bulk = true});
  Check({.n = 170, .cols = 1408, .rows = 80, .workspace_bytes = 700 << 10, .bulk = true});
}

TEST_CASE("FP8 by bulk copies with scales of tiles", "[cuda][bulk]") {
  for (int64_t n : {33, 64, 65, 96, 97, 180}) {
    Check({.n = n, .rows = 144, .tiled = true, .bulk = true});
  }
  for (int64_t rows : {16, 128, 272, 400, 528}) {
    Check({.n = 37, .cols = 256, .rows = rows, .tiled = true, .bulk = true});
  }
  for (int64_t cols : {128, 160, 384, 1408}) {
    Check({.dtype = DType::kF8G32, .n = 40, .cols = cols, .tiled = true, .bulk = true});
    Check({.dtype = DType::kF8G32, .n = 90, .cols = cols, .tiled = true, .bulk = true});
  }
}

TEST_CASE("FP8 by bulk copies gets every epilogue", "[cuda][bulk]") {
  for (bool tiled : {false, true}) {
    Case c{.rows = 272, .tiled = tiled, .bulk = true};
    c.out_f32 = true;
    Check(c);
    c.out_f32 = false;
    c.epilogue = Epilogue::kAdd;
    c.bias = true;
    Check(c);
    c.workspace_bytes = 32 << 10;  // some rows at a time
    Check(c);
    c.workspace_bytes = int64_t{4} << 20;
    c.epilogue = Epilogue::kNone;
    c.activation = Activation::kGelu;
    Check(c);
    c.epilogue = Epilogue::kGated;
    c.activation = Activation::kSilu;
    for (int64_t rows : {80, 272, 512}) {  // 40 and 136: tiles of rows with two scales
      c.rows = rows;
      Check(c);
    }
  }
}

TEST_CASE("Codes are multiplied only where library, device, shape and checkpoint allow", "[cuda]") {
  Case c{.quantises = false};
  c.machine.compute_major = 8;  // no FP8 units
  Check(c);
  c.machine = {};  // no library
  Check(c);
  c.machine.has_library = true;
  c.rows = 37;  // not whole 16
  Check(c);
  c.rows = 48;
  c.dtype = DType::kInt8G32;
  c.takes_int8_x = false;  // integers that were made for activations of 16 bits
  Check(c);
  c.takes_int8_x = c.quantises = true;
  c.machine.compute_major = 8;
  Check(c);
  c.dtype = DType::kF8G32;
  c.machine.compute_minor = 9;
  Check(c);
  c.tiled = true;  // Hopper alone has them
  c.quantises = false;
  Check(c);
  c.machine = {.compute_major = 10, .has_library = true};
  Check(c);
  c.machine = {.has_library = true, .scales_rows = false};  // cuBLAS 12.8
  Check(c);
  for (bool tiled : {true, false}) {  // it has no algorithm after all
    c.machine = {.has_library = true, .has_codes = false};
    c.tiled = tiled;
    Check(c);
  }
}

// Norms that make codes of a row keep it in whole rounds of 2048 columns: 13 of them are 104 KiB,
// while a block has 99 on some devices.
TEST_CASE("Rows that a device's shared memory does not hold become codes in two passes", "[cuda]") {
  constexpr int64_t kCols = 24832, kTokens = 33;
  Random random(3);
  const TestWeight weight = MakeRowScaledWeight(random, DType::kF8G128, 16, kCols);
  const Matrix x = Matrix::RandomOf(random, kTokens, kCols);
  const auto multiply = [&](const cuda::emulate::Machine& machine) {
    cuda::emulate::SetMachine(machine);
    auto device = EmulatedDevice(DType::kBF16, int64_t{16} << 20);
    const WeightSource source = weight.source();
    auto packed = *device->Pack({&source, 1});
    Matrix values = x, zeros(kTokens, 16), nothing(kTokens, kCols);
    Activations in(DType::kBF16, values), normed(DType::kBF16, nothing), out(DType::kBF16, zeros);
    MustRun(*device, [&](Ops& ops) {
      ops.Linear({.x = normed.tensor(),
                  .weight = packed.get(),
                  .out = out.tensor(),
                  .norm = NormArgs{.x = in.tensor(), .out = normed.tensor()}});
    });
    cuda::emulate::SetMachine({});
    std::vector<float> all;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t r = 0; r < 16; ++r) all.push_back(out(t, r));
    }
    return all;
  };
  const std::vector<float> hopper = multiply({.has_library = true});
  const std::vector<float> ada =
      multiply({.compute_major = 8, .compute_minor = 9, .has_library = true});
  double largest = 0, worst = 0;
  for (size_t i = 0; i < hopper.size(); ++i) {
    largest = std::max(largest, std::fabs(double{hopper[i]}));
    worst = std::max(worst, std::fabs(double{hopper[i]} - ada[i]));
  }
  CHECK(largest > 0);
  CHECK(worst < 0.02 * largest);  // rounded to BF16 once more on the way
}

std::unique_ptr<Device> DeviceWithLibrary() {
  cuda::emulate::SetMachine({.has_library = true});
  auto device = CreateCudaDevice({.graphs = false});
  cuda::emulate::SetMachine({});
  REQUIRE(device.ok());
  return std::move(device).value();
}

TEST_CASE("Quantised rows stay as near to the exact product as E4M3 is to its inputs", "[cuda]") {
  Random random(4);
  const TestWeight weight = MakeRowScaledWeight(random, DType::kF8G128, 64, 512);
  const WeightSource source = weight.source();
  auto device = DeviceWithLibrary();
  auto packed = device->Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix x = Matrix::RandomOf(random, 40, 512), zeros(40, 64);
  for (int64_t k = 0; k < 512; k += 64) *x.at(7, k) *= 100;  // outliers
  for (int64_t k = 0; k < 512; ++k) *x.at(8, k) = 0;
  for (int64_t k = 0; k < 512; ++k) *x.at(9, k) *= 1e-30f;
  Activations x_device(DType::kBF16, x), out(DType::kF32, zeros);
  MustRun(*device, [&](Ops& ops) {
    ops.Linear(
        {.x = x_device.tensor(), .weight = packed->get(), .out = out.tensor(), .out_f32 = true});
  });
  double difference = 0, square = 0;
  for (int64_t t = 0; t < 40; ++t) {
    double largest = 0;
    for (int64_t k = 0; k < 512; ++k) largest = std::max<double>(largest, std::fabs(x(t, k)));
    for (int64_t r = 0; r < 64; ++r) {
      double sum = 0, allowed = 1e-12;
      for (int64_t k = 0; k < 512; ++k) {
        const double w = weight.decoded[static_cast<size_t>(r * 512 + k)];
        sum += w * x(t, k);
        // Three bits of mantissa, and steps of 2^-9 of the scale where there are none.
        allowed += std::fabs(w) * std::max(std::fabs(x(t, k)) * 0x1.04p-4, largest / 448 * 0x1p-10);
      }
      CHECK(std::fabs(out(t, r) - sum) <= allowed);
      if (t < 7) difference += std::pow(out(t, r) - sum, 2), square += sum * sum;
    }
  }
  CHECK(std::sqrt(difference / square) < 0.04);  // 2^-5 / sqrt(3) and some for each x
  for (int64_t r = 0; r < 64; ++r) CHECK(out(8, r) == 0);
}

TEST_CASE("A row that is no numbers spoils no other", "[cuda]") {
  Random random(5);
  const TestWeight weight = MakeRowScaledWeight(random, DType::kF8G128, 16, 128);
  const WeightSource source = weight.source();
  auto device = DeviceWithLibrary();
  auto packed = device->Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix x = Matrix::RandomOf(random, 33, 128), zeros(33, 16);
  *x.at(3, 5) = std::numeric_limits<float>::quiet_NaN();
  *x.at(4, 6) = std::numeric_limits<float>::infinity();
  Activations x_device(DType::kBF16, x), out(DType::kBF16, zeros);
  MustRun(*device, [&](Ops& ops) {
    ops.Linear({.x = x_device.tensor(), .weight = packed->get(), .out = out.tensor()});
  });
  for (int64_t t = 0; t < 33; ++t) {
    for (int64_t r = 0; r < 16; ++r) CHECK(std::isfinite(out(t, r)) == (t != 3 && t != 4));
  }
}

}  // namespace
}  // namespace heddle::kernels::test
