#include "tests/kernels/cuda/product_case.h"

#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

struct Problem {
  explicit Problem(const ProductCase& c)
      : random(static_cast<uint32_t>(c.n * 1000003 + c.cols * 101 + c.rows)),
        weight(c.row_scaled    ? MakeRowScaledWeight(random, c.weight, c.rows, c.cols)
               : c.tile_scaled ? MakeTileScaledWeight(random, c.weight, c.rows, c.cols)
                               : MakeWeight(random, c.weight, c.rows, c.cols)),
        x(Matrix::RandomOf(random, c.n, c.cols)),
        out(Matrix::RandomOf(random, c.n, OutputCols(c))),
        bias(random.Normals(c.rows)) {
    Activations rounded(DType::kBF16, x), rounded_out(c.out_f32 ? DType::kF32 : DType::kBF16, out);
  }
  static int64_t OutputCols(const ProductCase& c) {
    return c.epilogue == Epilogue::kGated ? c.rows / 2 : c.rows;
  }
  Random random;
  TestWeight weight;
  Matrix x, out;  // what a residual is added to
  std::vector<float> bias;
};

// Multiplies `times` times, so that what one product leaves behind would show in the next.
Matrix Multiply(Device& device, DType act, const ProductCase& c, const Problem& problem) {
  const WeightSource source = problem.weight.source();
  auto packed = device.Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix x = problem.x, out = problem.out;
  const DType out_type = c.out_f32 || act == DType::kF32 ? DType::kF32 : DType::kBF16;
  Activations x_device(act, x, 8);
  for (int i = 0; i < c.times; ++i) {
    Matrix before = problem.out;
    bool same = true;
    Activations out_device(out_type, before, act == DType::kF32 ? 0 : c.out_pad);
    MustRun(device, [&](Ops& ops) {
      ops.Linear({.x = x_device.tensor(),
                  .weight = packed->get(),
                  .bias = c.bias ? problem.bias.data() : nullptr,
                  .epilogue = c.epilogue,
                  .activation = c.activation,
                  .out = out_device.tensor(),
                  .out_f32 = out_type == DType::kF32});
    });
    CHECK(out_device.GapsIntact());
    for (int64_t t = 0; t < out.num_rows(); ++t) {
      for (int64_t r = 0; r < out.num_cols(); ++r) {
        same = same && *out.at(t, r) == out_device(t, r);
        *out.at(t, r) = out_device(t, r);
      }
    }
    CHECK((same || i == 0));
  }
  return out;
}

Matrix MultiplyOnCuda(const CudaDeviceOptions& options, const ProductCase& c,
                      const Problem& problem) {
  auto device = CreateCudaDevice(options);
  REQUIRE(device.ok());
  return Multiply(**device, DType::kBF16, c, problem);
}

// Sum over k of |x w|, to which rounding errors of sums are relative. For gates both parts are
// included, times the other's size: |act(y)| <= |y|, and slopes are at most 1.13.
double Magnitude(const ProductCase& c, const Problem& problem, int64_t t, int64_t r) {
  auto row = [&](int64_t i, double* sum) {
    double size = 0;
    *sum = 0;
    for (int64_t k = 0; k < c.cols; ++k) {
      const double term = static_cast<double>(problem.x(t, k)) *
                          problem.weight.decoded[static_cast<size_t>(i * c.cols + k)];
      *sum += term;
      size += std::fabs(term);
    }
    return size;
  };
  double y, up;
  const double size = row(r, &y);
  if (c.epilogue != Epilogue::kGated) return size;
  const double up_size = row(r + c.rows / 2, &up);
  return 1.2 * (size * (std::fabs(up) + 4) + up_size * (std::fabs(y) + 4));
}

}  // namespace

void CheckProduct(const ProductCase& c, bool rounds_weights) {
  const Problem problem(c);
  INFO("x [" << c.n << ", " << c.cols << "] W " << Info(c.weight).name << " [" << c.rows << ", "
             << c.cols << "] epilogue " << static_cast<int>(c.epilogue));
  const CudaDeviceOptions options = {.workspace_bytes = c.workspace_bytes};
  const Matrix expected = Multiply(*CreateReferenceDevice(), DType::kF32, c, problem);
  CudaDeviceOptions in_memory = options;
  in_memory.always_dequantizes = true;
  const Matrix dequantised = MultiplyOnCuda(in_memory, c, problem);
  const Matrix found = MultiplyOnCuda(options, c, problem);
  // BF16 weights are not rounded.
  const double weight_rounding = c.weight == DType::kBF16 ? 0 : 0x1p-8;
  int64_t wrong = 0, differ = 0;
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t r = 0; r < found.num_cols(); ++r) {
      const double size = Magnitude(c, problem, t, r) + 1e-3;
      const double order = size * std::sqrt(static_cast<double>(c.cols)) * 0x1p-23;
      const double rounding = c.out_f32 ? 1e-6 : RoundingOf(DType::kBF16, expected(t, r));
      // One scale per row is applied after the sum here, before it there.
      const double scale = c.row_scaled || !rounds_weights ? size * 0x1p-8 : 0;
      if (std::fabs(found(t, r) - dequantised(t, r)) > order + 2 * rounding + scale) ++differ;
      if (std::fabs(found(t, r) - expected(t, r)) > order + size * weight_rounding + rounding)
        ++wrong;
    }
  }
  CHECK(differ == 0);
  CHECK(wrong == 0);
}

}  // namespace heddle::kernels::test
