// Linear on the emulated CUDA device, every kernel it can choose, against the reference.
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/emulate/emulator.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr DType kOwnTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0};

struct Case {
  int64_t n, cols, rows;
  DType weight = DType::kBF16;
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  bool bias = false;
  bool out_f32 = false;
  int64_t pad = 8, shift = 0;  // of x, in elements
  int64_t workspace_bytes = int64_t{4} << 20;
};

Matrix Run(Device& device, const Case& c, DType act, const TestWeight& weight, Matrix x, Matrix out,
           const std::vector<float>& bias, bool* gaps_intact) {
  WeightSource source = weight.source();
  auto packed = device.Pack({&source, 1});
  REQUIRE(packed.ok());
  Activations x_device(act, x, c.pad, c.shift);
  DType out_type = c.out_f32 ? DType::kF32 : act;
  Activations out_device(out_type, out, 3);
  LinearArgs args;
  args.x = x_device.tensor();
  args.weight = packed->get();
  args.bias = c.bias ? bias.data() : nullptr;
  args.epilogue = c.epilogue;
  args.activation = c.activation;
  args.out = out_device.tensor();
  args.out_f32 = c.out_f32;
  MustRun(device, [&](Ops& ops) { ops.Linear(args); });
  *gaps_intact = out_device.GapsIntact() && x_device.GapsIntact();
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    for (int64_t r = 0; r < out.num_cols(); ++r) *out.at(t, r) = out_device(t, r);
  }
  return out;
}

// What F32 sums of `cols` products, inputs rounded where the kernels round them, and the output's
// rounding may differ from the reference by. Outputs of gates are products of two such sums.
double Tolerance(const Case& c, DType act, const Matrix& x, const TestWeight& w, int64_t t,
                 int64_t r, double expected) {
  auto error_of = [&](int64_t row) {
    double magnitude = 0;
    for (int64_t k = 0; k < c.cols; ++k) {
      magnitude += std::fabs(static_cast<double>(x(t, k)) * w.decoded[row * c.cols + k]);
    }
    double relative = 4 * std::sqrt(static_cast<double>(c.cols)) * 0x1p-23;
    // F16 and F32 weights meet BF16 activations as BF16; so do Q8_0 and Q4_0 where converted.
    bool rounded = act == DType::kBF16 && c.weight != DType::kBF16;
    return magnitude * (relative + (rounded ? 0x1p-8 : 0));
  };
  double rounding = RoundingOf(c.out_f32 ? DType::kF32 : act, expected);
  if (c.epilogue != Epilogue::kGated) return 1.2 * error_of(r) + rounding + 1e-6;
  double gate = 0, up = 0;
  for (int64_t k = 0; k < c.cols; ++k) {
    gate += static_cast<double>(x(t, k)) * w.decoded[r * c.cols + k];
    up += static_cast<double>(x(t, k)) * w.decoded[(r + c.rows / 2) * c.cols + k];
  }
  // Activations have slopes of at most 1.13 and |act(y)| <= |y|.
  return 1.2 * (error_of(r) * (std::fabs(up) + 1) +
                error_of(r + c.rows / 2) * (std::fabs(gate) + 1)) +
         rounding + 1e-6;
}

void Check(const Case& c, DType act) {
  Random random(static_cast<uint32_t>(c.n * 1000003 + c.cols * 101 + c.rows));
  TestWeight weight = MakeWeight(random, c.weight, c.rows, c.cols);
  Matrix x = Matrix::RandomOf(random, c.n, c.cols);
  const int64_t out_cols = c.epilogue == Epilogue::kGated ? c.rows / 2 : c.rows;
  Matrix out = Matrix::RandomOf(random, c.n, out_cols);
  std::vector<float> bias = random.Normals(c.rows);
  { Activations rounded(act, x); }
  { Activations rounded(c.out_f32 ? DType::kF32 : act, out); }
  bool gaps = false;
  Case plain = c;
  plain.pad = plain.shift = 0;
  auto reference = CreateReferenceDevice();
  Matrix expected = Run(*reference, plain, DType::kF32, weight, x, out, bias, &gaps);
  auto device = EmulatedDevice(act, c.workspace_bytes);
  Matrix found = Run(*device, c, act, weight, x, out, bias, &gaps);
  INFO(Info(act).name << " x [" << c.n << ", " << c.cols << "] W " << Info(c.weight).name << " ["
                      << c.rows << ", " << c.cols << "] epilogue " << static_cast<int>(c.epilogue));
  CHECK(gaps);
  int64_t wrong = 0;
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t r = 0; r < out_cols; ++r) {
      double error = std::fabs(static_cast<double>(found(t, r)) - expected(t, r));
      bool good = error <= Tolerance(c, act, x, weight, t, r, expected(t, r));
      if (!good && wrong++ == 0) {
        CAPTURE(t, r, found(t, r), expected(t, r));
        CHECK(good);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Few rows through the fragment kernel match the reference in every format", "[cuda]") {
  for (DType weight : kOwnTypes) {
    for (int64_t n : {1, 7, 8, 9, 16, 17, 32}) {
      Check({.n = n, .cols = 288, .rows = 37, .weight = weight}, DType::kBF16);
    }
    Check({.n = 3, .cols = 32, .rows = 1, .weight = weight}, DType::kBF16);
    Check({.n = 2, .cols = 1696, .rows = 64, .weight = weight}, DType::kBF16);
  }
}

TEST_CASE("Many rows through the tiled kernel match the reference in every format", "[cuda]") {
  for (DType weight : kOwnTypes) {
    Check({.n = 33, .cols = 96, .rows = 131, .weight = weight}, DType::kBF16);
    // A workspace of 32 rows: the weights are converted and multiplied in several pieces.
    Check({.n = 130, .cols = 160, .rows = 70, .weight = weight, .workspace_bytes = 32 * 320},
          DType::kBF16);
  }
}

TEST_CASE("Rows that 16 bytes do not fit go through the plain kernel", "[cuda]") {
  for (DType weight : {DType::kF16, DType::kBF16}) {
    Check({.n = 2, .cols = 31, .rows = 5, .weight = weight, .pad = 0}, DType::kBF16);
    Check({.n = 40, .cols = 64, .rows = 5, .weight = weight, .pad = 3, .shift = 1}, DType::kBF16);
  }
}

TEST_CASE("F32 activations match the reference in every format", "[cuda]") {
  for (DType weight : kOwnTypes) {
    Check({.n = 5, .cols = 96, .rows = 17, .weight = weight, .pad = 1}, DType::kF32);
  }
}

TEST_CASE("Formats without kernels of their own are converted when they are packed", "[cuda]") {
  for (DType weight : {DType::kQ5_0, DType::kIQ4_NL, DType::kQ4_K, DType::kMXFP4}) {
    for (DType act : {DType::kBF16, DType::kF32}) {
      Check({.n = 9, .cols = 256, .rows = 17, .weight = weight}, act);
    }
  }
}

TEST_CASE("Every epilogue is applied by every kernel", "[cuda]") {
  for (int64_t n : {3, 40}) {  // fragments, tiles
    for (DType act : {DType::kBF16, DType::kF32}) {
      for (DType weight : {DType::kBF16, DType::kQ4_0}) {
        for (Activation activation :
             {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
          Check({.n = n,
                 .cols = 64,
                 .rows = 42,
                 .weight = weight,
                 .epilogue = Epilogue::kGated,
                 .activation = activation,
                 .bias = true},
                act);
        }
        Check({.n = n,
               .cols = 64,
               .rows = 42,
               .weight = weight,
               .epilogue = Epilogue::kAdd,
               .bias = true},
              act);
        Check({.n = n,
               .cols = 64,
               .rows = 42,
               .weight = weight,
               .activation = Activation::kGelu,
               .bias = true,
               .out_f32 = true},
              act);
      }
    }
  }
  Check({.n = 40,
         .cols = 64,
         .rows = 300,
         .weight = DType::kQ8_0,
         .epilogue = Epilogue::kGated,
         .activation = Activation::kSilu,
         .bias = true,
         .workspace_bytes = 100 * 128},
        DType::kBF16);
}

TEST_CASE("A row of a small batch has the same bits alone and in company", "[cuda]") {
  Random random(5);
  TestWeight weight = MakeWeight(random, DType::kQ4_0, 48, 512);
  WeightSource source = weight.source();
  auto device = EmulatedDevice(DType::kBF16);
  auto packed = device->Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix x = Matrix::RandomOf(random, 32, 512);
  Activations x_device(DType::kBF16, x);
  auto multiply = [&](int64_t n) {
    Matrix zeros(n, 48);
    Activations out(DType::kF32, zeros);
    Tensor rows = x_device.tensor();
    rows.rows = n;
    MustRun(*device, [&](Ops& ops) {
      ops.Linear({.x = rows, .weight = packed->get(), .out = out.tensor(), .out_f32 = true});
    });
    return out;
  };
  Activations all = multiply(32);
  for (int64_t n : {1, 9}) {
    Activations some = multiply(n);
    for (int64_t r = 0; r < 48; ++r) CHECK(some(n - 1, r) == all(n - 1, r));
  }
}

TEST_CASE("Threads may run in any order", "[cuda]") {
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  Check({.n = 9, .cols = 288, .rows = 37, .weight = DType::kQ4_0}, DType::kBF16);
  Check({.n = 40, .cols = 96, .rows = 131, .weight = DType::kBF16}, DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

}  // namespace
}  // namespace heddle::kernels::test
