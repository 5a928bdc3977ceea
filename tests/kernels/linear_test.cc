// Linear of every level and format against double sums over decoded weights.
#include <cmath>
#include <limits>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/products.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

bool HasFloatCodes(DType dtype) {
  return dtype == DType::kF8G32 || dtype == DType::kF8G128 || dtype == DType::kNF4 ||
         dtype == DType::kFP4;
}

// Whether the format's activations are rounded to int8.
bool IsInteger(DType dtype) { return dtype >= DType::kQ8_0 && !HasFloatCodes(dtype); }

// Whether weights are tables' or other signed bytes, beside which AVX2 without VNNI rounds
// activations so that sums fit 16 bits (pairs_tile.h).
bool HasSignedBytes(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kInt8G32 || dtype == DType::kInt8G128 ||
         dtype == DType::kIQ4_NL || dtype == DType::kIQ4_XS || dtype == DType::kIQ1 ||
         dtype == DType::kIQ2 || dtype == DType::kIQ3XXS || dtype == DType::kIQ3S;
}

// Whether activations are rounded to BF16 on levels that multiply it themselves.
bool IsBf16Product(DType dtype) { return dtype == DType::kBF16 || HasFloatCodes(dtype); }

// The sum of |x_k w_k| over a row, to which rounding errors are relative.
double Magnitude(const Matrix& x, const TestWeight& w, int64_t t, int64_t r) {
  double sum = 0;
  for (int64_t k = 0; k < w.cols; ++k) {
    sum += std::fabs(static_cast<double>(x(t, k)) * w.decoded[static_cast<size_t>(r * w.cols + k)]);
  }
  return sum;
}

// The largest step of int8 activations in columns [begin, begin + 32) of row t: of (largest of the
// block) / 123.25. Where sums must fit 16 bits, neighbours' positive or negative codes are 127
// together at most before they are rounded, and the magnitudes of four columns 253.
double StepOf(const Matrix& x, int64_t t, int64_t begin, bool fits16) {
  const auto at = [&](int64_t k) { return static_cast<double>(x(t, begin + k)); };
  double step = 0;
  for (int64_t k = 0; k < 32; ++k) {
    if (!fits16) step = std::max(step, std::fabs(at(k)) / 123.25);
  }
  for (int64_t k = 0; k < 32 && fits16; k += 2) {
    const double above = std::max(at(k), 0.0) + std::max(at(k + 1), 0.0);
    const double below = std::max(-at(k), 0.0) + std::max(-at(k + 1), 0.0);
    step = std::max(step, std::max(above, below) / 127);
    if (k % 8 >= 4) continue;
    const double four =
        std::fabs(at(k)) + std::fabs(at(k + 1)) + std::fabs(at(k + 4)) + std::fabs(at(k + 5));
    step = std::max(step, four / 253);
  }
  return step;
}

// F32 accumulation of k terms errs by at most k units relative to the magnitude, and by about
// sqrt(k) of them for independent roundings: 4 sqrt(k) is beyond any chance. Activations rounded
// to int8 per block err by half a step per term.
// Where the level multiplies BF16 itself, activations beside weights that are such numbers are
// rounded to 8 bits: by half a unit, 2^-8 at most; and the sixteen of NF4 and FP4 by 2^-9.
double Tolerance(const Matrix& x, const TestWeight& w, int64_t t, int64_t r,
                 const std::string& isa) {
  double eps = std::numeric_limits<float>::epsilon();
  double tolerance = 4 * std::sqrt(static_cast<double>(w.cols)) * eps * Magnitude(x, w, t, r);
  if (MultipliesBf16(isa) && IsBf16Product(w.dtype)) {
    const bool has_table = w.dtype == DType::kNF4 || w.dtype == DType::kFP4;
    tolerance += (has_table ? 0x1.8p-8 : 0x1p-8) * Magnitude(x, w, t, r);
  }
  if (!IsInteger(w.dtype)) return tolerance + 1e-30;
  for (int64_t b = 0; b < w.cols / 32; ++b) {
    double weights = 0;
    for (int64_t k = b * 32; k < b * 32 + 32; ++k) {
      weights += std::fabs(w.decoded[static_cast<size_t>(r * w.cols + k)]);
    }
    const bool fits16 = (isa == "avx2" || isa == "avx512_bw") && HasSignedBytes(w.dtype);
    tolerance += 0.5001 * StepOf(x, t, b * 32, fits16) * weights;
  }
  return tolerance + 1e-30;
}

void CheckProduct(Device& device, const TestWeight& w, Matrix& x, const std::string& isa) {
  std::vector<WeightSource> sources = {w.source()};
  auto packed = device.Pack(sources);
  REQUIRE(packed.ok());
  Matrix out = Multiply(device, **packed, x.tensor(), /*pad=*/3);
  CHECK(out.GapsIntact());
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    for (int64_t r = 0; r < w.rows; ++r) {
      double error = std::fabs(out(t, r) - Expected(x, w, t, r));
      if (!(error <= Tolerance(x, w, t, r, isa)))
        FAIL("row " << t << " column " << r << ": " << error);
    }
  }
}

TEST_CASE("a product that norms its rows first is the norm and then the product",
          "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    Random random(7);
    const TestWeight w = MakeWeight(random, DType::kQ8_0, 40, 96);
    Matrix factors = Matrix::RandomOf(random, 1, 96);
    Matrix x = Matrix::RandomOf(random, 5, 96);
    Matrix normed(5, 96), out(5, 40);
    WeightSource source = w.source();
    auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    const NormArgs norm = {
        .x = x.tensor(), .residual = {}, .weight = factors.at(0, 0), .out = normed.tensor()};
    REQUIRE(device->Run([&](Ops& ops) { ops.Norm(norm); }).ok());
    const Matrix expected = Multiply(*device, **packed, normed.tensor());
    Matrix scratch(5, 96);
    LinearArgs args{.x = scratch.tensor(), .weight = packed->get(), .out = out.tensor()};
    args.norm = norm;
    args.norm->out = scratch.tensor();
    REQUIRE(device->Run([&](Ops& ops) { ops.Linear(args); }).ok());
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t r = 0; r < 40; ++r) CHECK(out(t, r) == expected(t, r));
    }
  }
}

TEST_CASE("Linear agrees with double sums for every format, odd shape and level",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : kAllTypes) {
      for (int64_t rows : {1, 7, 8, 31, 33, 64, 131}) {
        for (int64_t cols : {1, 3, 16, 17, 64, 257, 352, 768}) {
          if (cols % Info(dtype).block_elements != 0) continue;
          for (int64_t tokens : {1, 2, 3, 13}) {
            INFO(name << " " << Info(dtype).name << " [" << rows << ", " << cols << "] x "
                      << tokens);
            Random random(static_cast<uint32_t>(rows * 1000 + cols * 10 + tokens));
            TestWeight w = MakeWeight(random, dtype, rows, cols);
            Matrix x = Matrix::RandomOf(random, tokens, cols, /*pad=*/5, /*shift=*/1);
            CheckProduct(*device, w, x, name);
          }
        }
      }
    }
  }
}

TEST_CASE("Linear agrees with double sums at the sizes of a real model", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : kAllTypes) {
      INFO(name << " " << Info(dtype).name);
      Random random(1);
      TestWeight w = MakeWeight(random, dtype, 160, 2048);
      Matrix x = Matrix::RandomOf(random, 5, 2048);
      *x.at(2, 7) = 900.0f;  // outliers as transformers have them
      *x.at(4, 2047) = -300.0f;
      CheckProduct(*device, w, x, name);
    }
  }
}

TEST_CASE("A row of Linear has the same bits alone, in any batch, at any place, on any threads",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    auto threaded = CreateCpuDevice({3, name, false});
    REQUIRE(threaded.ok());
    for (DType dtype : kAllTypes) {
      Random random(2);
      const int64_t cols = Columns(dtype, 607);
      // With one thread enough panels for one row to go through them by pairs, and one is left.
      TestWeight w = MakeWeight(random, dtype, 300, cols);
      std::vector<WeightSource> sources = {w.source()};
      auto packed = device->Pack(sources);
      auto packed_too = (*threaded)->Pack(sources);
      REQUIRE((packed.ok() && packed_too.ok()));
      Matrix x = Matrix::RandomOf(random, 33, cols);
      Matrix alone(33, 300);
      for (int64_t t = 0; t < 33; ++t) {
        Matrix row = Multiply(*device, **packed, x.rows(t, t + 1));
        std::copy_n(row.at(0, 0), 300, alone.at(t, 0));
      }
      for (int64_t begin : {0, 1, 5, 20}) {
        for (int64_t end = begin + 1; end <= 33; ++end) {
          INFO(name << " " << Info(dtype).name << " rows " << begin << " to " << end);
          Matrix expected(end - begin, 300);
          std::copy_n(alone.at(begin, 0), (end - begin) * 300, expected.at(0, 0));
          CHECK(SameBits(Multiply(*device, **packed, x.rows(begin, end)), expected));
          CHECK(SameBits(Multiply(**threaded, **packed_too, x.rows(begin, end)), expected));
        }
      }
    }
  }
}

TEST_CASE("Rows that pass a panel stretch by stretch have the bits of a row that passes it whole",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : kAllTypes) {
      INFO(name << " " << Info(dtype).name);
      Random random(7);
      const int64_t cols = Columns(dtype, 2336);  // stretches are 256 to some 1000 columns
      TestWeight w = MakeWeight(random, dtype, 70, cols);
      std::vector<WeightSource> sources = {w.source()};
      auto packed = device->Pack(sources);
      REQUIRE(packed.ok());
      constexpr int64_t kRows = 530;  // more than one group
      Matrix x = Matrix::RandomOf(random, kRows, cols);
      Matrix together = Multiply(*device, **packed, x.tensor());
      for (int64_t t : {0, 1, 24, 263, 264, 300, 529}) {
        Matrix expected(1, 70);
        std::copy_n(together.at(t, 0), 70, expected.at(0, 0));
        CHECK(SameBits(Multiply(*device, **packed, x.rows(t, t + 1)), expected));
      }
    }
  }
}

// Both add the same products in the same order.
TEST_CASE("AVX-512 without VNNI gives the bits of AVX2", "[kernels][kernel]") {
  auto narrow = CreateCpuDevice({1, "avx2", false});
  auto wide = CreateCpuDevice({1, "avx512_bw", false});
  if (!narrow.ok() || !wide.ok()) return;
  for (DType dtype : kAllTypes) {
    INFO(Info(dtype).name);
    Random random(11);
    const int64_t cols = Columns(dtype, 1056);
    const TestWeight w = MakeWeight(random, dtype, 45, cols);
    const std::vector<WeightSource> sources = {w.source()};
    auto narrow_weight = (*narrow)->Pack(sources);
    auto wide_weight = (*wide)->Pack(sources);
    REQUIRE(narrow_weight.ok());
    REQUIRE(wide_weight.ok());
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 12, 21}) {
      INFO(rows << " rows");
      Matrix x = Matrix::RandomOf(random, rows, cols);
      CHECK(SameBits(Multiply(**narrow, **narrow_weight, x.tensor()),
                     Multiply(**wide, **wide_weight, x.tensor())));
    }
  }
}

// The reference's epilogues are themselves checked by hand arithmetic in reference_test.cc.
TEST_CASE("Bias, activation, residual and gate agree with the reference for stacked weights",
          "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (auto& [name, device] : CpuDevices(2)) {
    for (auto types :
         {std::pair(DType::kF32, DType::kF32), std::pair(DType::kBF16, DType::kF16),
          std::pair(DType::kQ8_0, DType::kF32), std::pair(DType::kF16, DType::kQ4_0),
          std::pair(DType::kQ4_K, DType::kQ6_K), std::pair(DType::kQ8_0, DType::kQ5_1),
          std::pair(DType::kNF4, DType::kInt4G32), std::pair(DType::kNVFP4, DType::kFP4)}) {
      for (Epilogue epilogue : {Epilogue::kNone, Epilogue::kAdd, Epilogue::kGated}) {
        for (Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGelu,
                                      Activation::kGeluTanh, Activation::kRelu}) {
          for (int64_t tokens : {1, 4, 9, 26}) {
            if (epilogue == Epilogue::kAdd && activation != Activation::kNone) continue;
            INFO(name << " " << Info(types.first).name << " epilogue " << int(epilogue)
                      << " activation " << int(activation) << " tokens " << tokens);
            Random random(3);
            const int64_t cols = Columns(types.first, 96);
            TestWeight a = MakeWeight(random, types.first, 45, cols);
            TestWeight b = MakeWeight(random, types.second, 45, cols);
            std::vector<WeightSource> sources = {a.source(), b.source()};
            std::vector<float> bias = random.Normals(90);
            Matrix x = Matrix::RandomOf(random, tokens, cols);
            bool gated = epilogue == Epilogue::kGated;
            Matrix start = Matrix::RandomOf(random, tokens, gated ? 45 : 90);
            auto run = [&](Device& d) {
              auto packed = d.Pack(sources);
              REQUIRE(packed.ok());
              Matrix out = start;
              REQUIRE(d.Run([&](Ops& ops) {
                         LinearArgs args;
                         args.x = x.tensor();
                         args.weight = packed->get();
                         args.bias = bias.data();
                         args.epilogue = epilogue;
                         args.activation = activation;
                         args.out = out.tensor();
                         ops.Linear(args);
                       }).ok());
              return out;
            };
            Matrix expected = run(*reference);
            Matrix found = run(*device);
            // Activations have slopes of at most 1.13; a product takes the other factor with it.
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t c = 0; c < found.num_cols(); ++c) {
                const TestWeight& own = c < 45 ? a : b;
                double slack = 1.2 * Tolerance(x, own, t, c % 45, name) + 1e-6;
                if (gated) {
                  double gate = std::fabs(Expected(x, a, t, c) + bias[c]) + 1;
                  double up = std::fabs(Expected(x, b, t, c) + bias[c + 45]) + 1;
                  slack = 1.2 * (Tolerance(x, a, t, c, name) * up +
                                 Tolerance(x, b, t, c, name) * gate) +
                          1e-6 * gate * up;
                }
                if (!(std::fabs(found(t, c) - expected(t, c)) <= slack)) {
                  FAIL("[" << t << ", " << c << "] " << found(t, c) << " expected "
                           << expected(t, c) << " slack " << slack);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("Zero rows, zero weights and an empty batch are handled", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : kAllTypes) {
      INFO(name << " " << Info(dtype).name);
      Random random(4);
      const int64_t cols = Columns(dtype, 64);
      TestWeight w = MakeWeight(random, dtype, 40, cols);
      std::vector<WeightSource> sources = {w.source()};
      auto packed = device->Pack(sources);
      REQUIRE(packed.ok());
      Matrix zeros(3, cols);
      CHECK(SameBits(Multiply(*device, **packed, zeros.tensor()), Matrix(3, 40)));
      Multiply(*device, **packed, zeros.rows(0, 0));
    }
  }
}

// Weights and activations whose products are all at their limits and of one sign: sums of 16 bits
// that overflowed, wrapped or saturated would show.
TEST_CASE("Activations and weights at the limits of their codes do not overflow",
          "[kernels][kernel]") {
  constexpr int64_t kCols = 64;
  for (auto& [name, device] : CpuDevices(1)) {
    for (int8_t code : {-128, -127, 127}) {
      for (uint32_t signs : {0x0u, 0x1u, 0x5u, 0x3u, 0x33u, 0x99u}) {
        INFO(name << " code " << int(code) << " signs " << signs);
        TestWeight w;
        w.dtype = DType::kQ8_0;
        w.rows = 1;
        w.cols = kCols;
        for (int64_t b = 0; b < kCols / 32; ++b) {
          w.bytes.push_back(0x00);  // the scale 1 in F16
          w.bytes.push_back(0x3c);
          w.bytes.insert(w.bytes.end(), 32, static_cast<uint8_t>(code));
        }
        w.decoded.assign(kCols, code);
        for (float low : {0.0f, 0.5f, 1.0f}) {  // beside 1, in every second column
          Matrix x(1, kCols);
          for (int64_t k = 0; k < kCols; ++k) {
            const float value = k % 2 == 0 ? 1.0f : low;
            *x.at(0, k) = (signs >> (k % 8) & 1) != 0 ? -value : value;
          }
          CheckProduct(*device, w, x, name);
        }
      }
    }
  }
}

TEST_CASE("Infinite activations do not become finite", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(1)) {
    for (DType dtype : kAllTypes) {
      INFO(name << " " << Info(dtype).name);
      Random random(5);
      const int64_t cols = Columns(dtype, 64);
      TestWeight w = MakeWeight(random, dtype, 40, cols);
      std::vector<WeightSource> sources = {w.source()};
      auto packed = device->Pack(sources);
      REQUIRE(packed.ok());
      Matrix x = Matrix::RandomOf(random, 1, cols);
      *x.at(0, 40) = std::numeric_limits<float>::infinity();
      Matrix out = Multiply(*device, **packed, x.tensor());
      for (int64_t c = 0; c < 40; ++c) CHECK_FALSE(std::isfinite(out(0, c)));
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
