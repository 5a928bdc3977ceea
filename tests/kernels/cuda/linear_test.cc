// Linear on the emulated CUDA device, every kernel it can choose, against the reference.
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/linear/cuda_weight.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
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
  bool library = false;  // many rows are multiplied by one
  int32_t compute_major = 9;
};

struct Inputs {
  TestWeight weight;
  Matrix x, out;  // what a residual is added to
  std::vector<float> bias;
};

Matrix Run(Device& device, const Case& c, DType act, const Inputs& inputs, bool* gaps_intact) {
  Matrix x = inputs.x, out = inputs.out;
  WeightSource source = inputs.weight.source();
  auto packed = device.Pack({&source, 1});
  REQUIRE(packed.ok());
  Activations x_device(act, x, c.pad, c.shift);
  DType out_type = c.out_f32 ? DType::kF32 : act;
  Activations out_device(out_type, out, 3);
  LinearArgs args;
  args.x = x_device.tensor();
  args.weight = packed->get();
  args.bias = c.bias ? inputs.bias.data() : nullptr;
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

// The allowed difference from the reference: that of F32 sums of `cols` products, inputs rounded
// where the kernels round them, and the output's rounding. Outputs of gates are products of two
// such sums.
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
  if (c.library) rounding += 2 * RoundingOf(act, std::fabs(expected) + 8);  // of the product
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
  const Inputs inputs = {weight, x, out, bias};
  Matrix expected = Run(*reference, plain, DType::kF32, inputs, &gaps);
  cuda::emulate::SetMachine({.compute_major = c.compute_major, .has_library = c.library});
  // Many rows of codes without BF16 in memory have separate tests (linear_mixed_test.cc).
  auto device = CreateCudaDevice({.activations = act,
                                  .workspace_bytes = c.workspace_bytes,
                                  .graphs = !c.library,
                                  .always_dequantizes = true});
  cuda::emulate::SetMachine({});
  REQUIRE(device.ok());
  if (c.library)
    CHECK((*device)->description().ends_with(", emulated library with FP8 and its blocks)"));
  Matrix found = Run(**device, c, act, inputs, &gaps);
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

// On sm_90a bulk copies are used.
TEST_CASE("Many rows through the tiled kernel match the reference in every format", "[cuda]") {
  for (DType weight : kOwnTypes) {
    for (int32_t major : {8, 9}) {
      Case c{.n = 33, .cols = 96, .rows = 131, .weight = weight, .compute_major = major};
      Check(c, DType::kBF16);
      // A workspace of 32 rows: the weights are converted and multiplied in several pieces.
      c.n = 130, c.cols = 160, c.rows = 70;
      c.workspace_bytes = 32 * 320;
      Check(c, DType::kBF16);
    }
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

TEST_CASE("Every blocked format matches the reference in its layout, few rows and many", "[cuda]") {
  for (DType weight : kAllTypes) {
    if (weight <= DType::kQ4_0) continue;
    for (int64_t n : {1, 9, 20}) {
      Check({.n = n, .cols = 768, .rows = 35, .weight = weight}, DType::kBF16);
    }
    Check({.n = 33, .cols = 256, .rows = 70, .weight = weight}, DType::kBF16);
    Check({.n = 2, .cols = 256, .rows = 5, .weight = weight, .pad = 3, .shift = 1}, DType::kBF16);
    Check({.n = 2, .cols = 256, .rows = 5, .weight = weight}, DType::kF32);
  }
}

// A product behind a norm, in one op or two; whether the norm's rows were stored.
struct NormedCase {
  int64_t n;
  int64_t cols;
  DType weight;
  Epilogue epilogue = Epilogue::kNone;
  float weight_offset = 0;
  bool in_place = false;  // added to what is normed
};
std::vector<float> RunNormed(const NormedCase& c, bool in_one, bool* stored) {
  Random random(7);
  const int64_t rows = c.in_place ? c.cols : 70;
  const TestWeight weight = c.weight == DType::kF8G32
                                ? MakeRowScaledWeight(random, c.weight, rows, c.cols)
                                : MakeWeight(random, c.weight, rows, c.cols);
  const WeightSource source = weight.source();
  auto device = EmulatedDevice(DType::kBF16);
  auto packed = *device->Pack({&source, 1});
  Matrix values = Matrix::RandomOf(random, c.n, c.cols), zeros(c.n, c.cols);
  Matrix outs(c.n, c.epilogue == Epilogue::kGated ? rows / 2 : rows);
  const std::vector<float> factors = random.Normals(c.cols);  // at 16 bytes, as all of the heap
  Activations x(DType::kBF16, values), normed(DType::kBF16, zeros), out(DType::kBF16, outs);
  const NormArgs norm{.x = x.tensor(),
                      .residual = {},
                      .weight = factors.data(),
                      .eps = 1e-3f,
                      .weight_offset = c.weight_offset,
                      .out = normed.tensor()};
  LinearArgs linear{
      .x = normed.tensor(),
      .weight = packed.get(),
      .epilogue = c.epilogue,
      .activation = c.epilogue == Epilogue::kGated ? Activation::kSilu : Activation::kNone,
      .out = c.in_place ? x.tensor() : out.tensor()};
  MustRun(*device, [&](Ops& ops) {
    if (in_one) {
      linear.norm = norm;
    } else {
      ops.Norm(norm);
    }
    ops.Linear(linear);
  });
  std::vector<float> all;
  *stored = false;
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t i = 0; i < c.cols; ++i) *stored = *stored || normed(t, i) != 0;
    for (int64_t r = 0; r < outs.num_cols(); ++r) all.push_back(c.in_place ? x(t, r) : out(t, r));
  }
  return all;
}

void CheckNormed(const NormedCase& c, bool folds) {
  INFO(c.n << " x " << c.cols << " of " << Info(c.weight).name);
  bool stored = false, stored_apart = false;
  const std::vector<float> found = RunNormed(c, /*in_one=*/true, &stored);
  CHECK(found == RunNormed(c, /*in_one=*/false, &stored_apart));
  CHECK(stored == !folds);
  CHECK(stored_apart);
}

TEST_CASE("A norm folded into a product of few rows gives the bits of the norm before it",
          "[cuda]") {
  for (DType weight : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K,
                       DType::kF8G32, DType::kMXFP4}) {
    CheckNormed({.n = 1, .cols = 768, .weight = weight}, true);
    CheckNormed({.n = 3, .cols = 2304, .weight = weight, .epilogue = Epilogue::kGated}, true);
  }
  CheckNormed({.n = 4, .cols = 40, .weight = DType::kBF16, .weight_offset = 1}, true);
}

TEST_CASE("A norm is left apart where it does not fit, or where its rows are overwritten",
          "[cuda]") {
  CheckNormed({.n = 5, .cols = 768, .weight = DType::kQ4_K}, false);
  CheckNormed({.n = 4, .cols = 9216, .weight = DType::kBF16}, false);  // 72 KiB and some
  CheckNormed({.n = 1, .cols = 44, .weight = DType::kBF16}, false);    // rows of no 16 bytes
  CheckNormed(
      {.n = 2, .cols = 64, .weight = DType::kBF16, .epilogue = Epilogue::kAdd, .in_place = true},
      false);
}

TEST_CASE("Products of one step fold norms of more rows and of fewer", "[cuda]") {
  constexpr int64_t kCols = 8192, kRows = 32;  // 3 rows of x are more than 48 KiB, with the sums
  Random random(11);
  const TestWeight weight = MakeWeight(random, DType::kBF16, kRows, kCols);
  const WeightSource source = weight.source();
  auto device = EmulatedDevice(DType::kBF16);
  auto packed = *device->Pack({&source, 1});
  const std::vector<float> factors = random.Normals(kCols);
  Matrix values = Matrix::RandomOf(random, 4, kCols), zeros(4, kCols), more(4, kRows),
         fewer(3, kRows);
  Activations x(DType::kBF16, values), normed(DType::kBF16, zeros);
  Activations first(DType::kBF16, more), second(DType::kBF16, fewer);
  MustRun(*device, [&](Ops& ops) {
    for (Activations* out : {&first, &second}) {
      Tensor from = x.tensor(), between = normed.tensor();
      from.rows = between.rows = out->tensor().rows;
      ops.Linear(
          {.x = between,
           .weight = packed.get(),
           .out = out->tensor(),
           .norm = NormArgs{
               .x = from, .residual = {}, .weight = factors.data(), .eps = 1e-3f, .out = between}});
    }
  });
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t r = 0; r < kRows; ++r) CHECK(first(t, r) == second(t, r));
  }
  CHECK(first(3, 0) != 0);
}

TEST_CASE("Stacked formats meet in the narrowest layout that holds them all", "[cuda]") {
  using cuda::WeightLayout;
  auto layout = [](std::vector<DType> types) {
    std::vector<WeightSource> sources(types.size());
    for (size_t i = 0; i < types.size(); ++i) sources[i].dtype = types[i];
    return cuda::LayoutOf(sources, DType::kBF16);
  };
  CHECK(layout({DType::kQ4_K, DType::kQ4_K}) == WeightLayout::kInt4Offset);
  CHECK(layout({DType::kQ4_0, DType::kQ4_K}) == WeightLayout::kInt4Offset);
  CHECK(layout({DType::kQ4_K, DType::kQ4_K, DType::kQ6_K}) == WeightLayout::kInt8FineOffset);
  CHECK(layout({DType::kQ8_0, DType::kQ4_0}) == WeightLayout::kInt8);
  CHECK(layout({DType::kQ8_0, DType::kQ5_1}) == WeightLayout::kInt8Offset);
  CHECK(layout({DType::kIQ4_NL, DType::kIQ4_XS}) == WeightLayout::kTable4);
  CHECK(layout({DType::kIQ3S, DType::kIQ3S}) == WeightLayout::kTable4);
  CHECK(layout({DType::kNVFP4, DType::kNVFP4}) == WeightLayout::kTable4Fine);
  CHECK(layout({DType::kQ3_K}) == WeightLayout::kTable4Fine);
  CHECK(layout({DType::kIQ2, DType::kIQ2}) == WeightLayout::kTable4Fine);
  CHECK(layout({DType::kNVFP4, DType::kMXFP4}) == WeightLayout::kInt8Fine);
  CHECK(layout({DType::kQ3_K, DType::kQ5_K}) == WeightLayout::kInt8FineOffset);
  CHECK(layout({DType::kQ3_K, DType::kQ6_K}) == WeightLayout::kInt8Fine);
  CHECK(layout({DType::kIQ1, DType::kIQ2}) == WeightLayout::kInt8Fine);
  CHECK(layout({DType::kIQ4_NL, DType::kMXFP4}) == WeightLayout::kInt8);
  CHECK(layout({DType::kIQ3S, DType::kIQ4_XS, DType::kQ4_K}) == WeightLayout::kInt8Offset);
  CHECK(layout({DType::kQ6_K, DType::kIQ3XXS}) == WeightLayout::kInt8Fine);
  CHECK(layout({DType::kIQ2, DType::kIQ3XXS}) == WeightLayout::kInt8Fine);
  CHECK(layout({DType::kNF4, DType::kIQ4_NL}) == WeightLayout::kBF16);
  CHECK(layout({DType::kNF4, DType::kQ4_0}) == WeightLayout::kBF16);
  CHECK(layout({DType::kF32, DType::kQ4_0}) == WeightLayout::kBF16);
  CHECK(layout({DType::kF16, DType::kF32}) == WeightLayout::kBF16);
}

TEST_CASE("Stacks of mixed formats multiply as their sources do", "[cuda]") {
  Random random(12);
  for (auto [first, second] : {std::pair{DType::kQ4_K, DType::kQ6_K},
                               {DType::kQ4_0, DType::kQ4_K},
                               {DType::kIQ3S, DType::kIQ4_XS},
                               {DType::kIQ3XXS, DType::kQ6_K},
                               {DType::kQ3_K, DType::kQ5_K},
                               {DType::kNVFP4, DType::kMXFP4},
                               {DType::kQ8_0, DType::kQ5_1}}) {
    const TestWeight weights[] = {MakeWeight(random, first, 20, 512),
                                  MakeWeight(random, second, 13, 512)};
    const WeightSource sources[] = {weights[0].source(), weights[1].source()};
    Matrix x = Matrix::RandomOf(random, 3, 512), zeros(3, 33);
    auto device = EmulatedDevice(DType::kBF16);
    auto packed = device->Pack(sources);
    REQUIRE(packed.ok());
    Activations x_device(DType::kBF16, x), out(DType::kF32, zeros);
    MustRun(*device, [&](Ops& ops) {
      ops.Linear(
          {.x = x_device.tensor(), .weight = packed->get(), .out = out.tensor(), .out_f32 = true});
    });
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t r = 0; r < 33; ++r) {
        const TestWeight& weight = weights[r < 20 ? 0 : 1];
        const float* row = &weight.decoded[(r < 20 ? r : r - 20) * 512];
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < 512; ++k) {
          sum += static_cast<double>(x(t, k)) * row[k];
          magnitude += std::fabs(static_cast<double>(x(t, k)) * row[k]);
        }
        CHECK(std::fabs(out(t, r) - sum) <= magnitude * 0x1p-10);  // scales of F16
      }
    }
  }
}

TEST_CASE("Scales far outside of F16's range are kept by the factor of their row", "[cuda]") {
  for (const float size : {1e-12f, 1e12f}) {
    std::vector<uint8_t> bytes;  // two rows of kInt4G32, codes 0 to 15 twice, zero point 3
    for (int r = 0; r < 2; ++r) {
      const float scale = r == 0 ? size : 1.0f;
      const auto* raw = reinterpret_cast<const uint8_t*>(&scale);
      bytes.insert(bytes.end(), raw, raw + 4);
      bytes.push_back(3);
      for (int i = 0; i < 16; ++i) bytes.push_back(static_cast<uint8_t>(i | i << 4));
    }
    const WeightSource source{
        .data = bytes.data(), .dtype = DType::kInt4G32, .rows = 2, .cols = 32, .name = "w"};
    auto device = EmulatedDevice(DType::kBF16);
    auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    Matrix x(1, 32), zeros(1, 2);
    *x.at(0, 31) = 1;  // code 15
    Activations x_device(DType::kBF16, x), out(DType::kF32, zeros);
    MustRun(*device, [&](Ops& ops) {
      ops.Linear(
          {.x = x_device.tensor(), .weight = packed->get(), .out = out.tensor(), .out_f32 = true});
    });
    CHECK(out(0, 0) == Approx(12.0 * size).epsilon(1e-3));
    CHECK(out(0, 1) == Approx(12.0).epsilon(1e-3));
  }
}

TEST_CASE("Memory of a row is that of its layout", "[cuda]") {
  auto device = EmulatedDevice(DType::kBF16);
  CHECK(device->PackedRowBytes(DType::kBF16, 4096) == 8192);
  CHECK(device->PackedRowBytes(DType::kF32, 4096) == 8192);
  CHECK(device->PackedRowBytes(DType::kQ4_0, 4096) == 2048 + 256 + 4);
  CHECK(device->PackedRowBytes(DType::kQ4_K, 4096) == 2048 + 512 + 4);
  CHECK(device->PackedRowBytes(DType::kQ6_K, 4096) == 4096 + 512 + 4);
  Random random(2);
  for (DType dtype : kAllTypes) {
    const TestWeight weight = MakeWeight(random, dtype, 64, 256);
    const WeightSource source = weight.source();
    auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    CHECK((*packed)->bytes == 64 * device->PackedRowBytes(dtype, 256));
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

// There are so many rows that a library comes first.
TEST_CASE("What a library multiplies gets every epilogue", "[cuda]") {
  for (DType weight : {DType::kBF16, DType::kF16, DType::kQ4_K}) {
    Case c{.n = 420, .cols = 256, .rows = 42, .weight = weight, .library = true};
    Check(c, DType::kBF16);
    c.out_f32 = true;
    Check(c, DType::kBF16);
    c.out_f32 = false;
    c.epilogue = Epilogue::kAdd;
    Check(c, DType::kBF16);
    c.bias = true;
    Check(c, DType::kBF16);
    c.epilogue = Epilogue::kNone;
    c.activation = Activation::kGelu;
    Check(c, DType::kBF16);
    c.epilogue = Epilogue::kGated;
    c.activation = Activation::kSilu;
    Check(c, DType::kBF16);
    // Room for some rows of x, and for some rows of the weight.
    c.workspace_bytes = 16 << 10;
    Check(c, DType::kBF16);
  }
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
  Check({.n = 40, .cols = 96, .rows = 131, .weight = DType::kBF16, .compute_major = 8},
        DType::kBF16);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

}  // namespace
}  // namespace heddle::kernels::test
