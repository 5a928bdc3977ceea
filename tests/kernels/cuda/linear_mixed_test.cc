// Products of many rows and quantised weights on the emulated sm_90a: dequantised on their way to
// the matrix instructions, against the reference, and against the same weights as BF16 in memory.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/emulate/emulator.h"
#include "kernels/cuda/emulate/machine.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

using cuda::LinearWay;
using cuda::PackedLayout;
using cuda::WeightLayout;

struct Case {
  int64_t n = 33, cols = 256, rows = 70;
  DType weight = DType::kQ4_0;
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  bool bias = false;
  bool out_f32 = true;
  int64_t out_pad = 0;  // 0 and 4: outputs are stored four at a time, else one by one
  int64_t workspace_bytes = int64_t{4} << 20;
  bool row_scaled = false, tile_scaled = false;
  int times = 1;
};

struct Problem {
  explicit Problem(const Case& c)
      : random(static_cast<uint32_t>(c.n * 1000003 + c.cols * 101 + c.rows)),
        weight(c.row_scaled    ? MakeRowScaledWeight(random, c.weight, c.rows, c.cols)
               : c.tile_scaled ? MakeTileScaledWeight(random, c.weight, c.rows, c.cols)
                               : MakeWeight(random, c.weight, c.rows, c.cols)),
        x(Matrix::RandomOf(random, c.n, c.cols)),
        out(Matrix::RandomOf(random, c.n, OutputCols(c))),
        bias(random.Normals(c.rows)) {
    Activations rounded(DType::kBF16, x), rounded_out(c.out_f32 ? DType::kF32 : DType::kBF16, out);
  }
  static int64_t OutputCols(const Case& c) {
    return c.epilogue == Epilogue::kGated ? c.rows / 2 : c.rows;
  }
  Random random;
  TestWeight weight;
  Matrix x, out;  // what a residual is added to
  std::vector<float> bias;
};

// `times` times; what one product leaves behind would show in the next.
Matrix Multiply(Device& device, DType act, const Case& c, const Problem& problem) {
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

Matrix MultiplyOnCuda(const CudaDeviceOptions& options, const Case& c, const Problem& problem) {
  auto device = CreateCudaDevice(options);
  REQUIRE(device.ok());
  return Multiply(**device, DType::kBF16, c, problem);
}

// Sum over k of |x w|: what rounding errors of sums are relative to. Of gates, both parts, times
// the other's size: |act(y)| <= |y|, and slopes are at most 1.13.
double Magnitude(const Case& c, const Problem& problem, int64_t t, int64_t r) {
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

// The values are those of weights rounded to BF16: of those, up to the order of sums in F32; of the
// exact weights, up to that rounding. Kernels for few rows do not round weights.
void Check(const Case& c, bool rounds_weights = true) {
  const Problem problem(c);
  INFO("x [" << c.n << ", " << c.cols << "] W " << Info(c.weight).name << " [" << c.rows << ", "
             << c.cols << "] epilogue " << static_cast<int>(c.epilogue));
  const CudaDeviceOptions options = {.workspace_bytes = c.workspace_bytes};
  const Matrix expected = Multiply(*CreateReferenceDevice(), DType::kF32, c, problem);
  CudaDeviceOptions in_memory = options;
  in_memory.always_dequantizes = true;
  const Matrix dequantised = MultiplyOnCuda(in_memory, c, problem);
  const Matrix found = MultiplyOnCuda(options, c, problem);
  int64_t wrong = 0, differ = 0;
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t r = 0; r < found.num_cols(); ++r) {
      const double size = Magnitude(c, problem, t, r) + 1e-3;
      const double order = size * std::sqrt(static_cast<double>(c.cols)) * 0x1p-23;
      const double rounding = c.out_f32 ? 1e-6 : RoundingOf(DType::kBF16, expected(t, r));
      // One scale per row is applied after the sum here, before it there.
      const double scale = c.row_scaled || !rounds_weights ? size * 0x1p-8 : 0;
      if (std::fabs(found(t, r) - dequantised(t, r)) > order + 2 * rounding + scale) ++differ;
      if (std::fabs(found(t, r) - expected(t, r)) > order + size * 0x1p-8 + rounding) ++wrong;
    }
  }
  CHECK(differ == 0);
  CHECK(wrong == 0);
}

TEST_CASE("Weights of every format are multiplied as their values in BF16 are", "[cuda]") {
  for (DType weight : kAllTypes) {
    if (weight == DType::kF32 || weight == DType::kF16 || weight == DType::kBF16) continue;
    Check({.n = 33, .weight = weight});
    Check({.n = 66, .rows = 20, .weight = weight});
  }
}

TEST_CASE("Weights with one scale per row are multiplied where no library takes them", "[cuda]") {
  for (DType weight : {DType::kF8G128, DType::kInt8G32}) {
    Check({.n = 40, .weight = weight, .row_scaled = true});
    Check({.n = 70,
           .rows = 42,
           .weight = weight,
           .epilogue = Epilogue::kGated,
           .activation = Activation::kSilu,
           .row_scaled = true});
  }
}

TEST_CASE("Weights with one scale per tile are multiplied where no library takes them", "[cuda]") {
  Check({.n = 40, .cols = 384, .rows = 150, .weight = DType::kF8G128, .tile_scaled = true});
}

TEST_CASE("Rows and columns need not fill tiles, stages or groups", "[cuda]") {
  for (int64_t n : {33, 64, 65, 129, 300}) Check({.n = n, .cols = 160, .rows = 37});
  for (int64_t rows : {1, 255, 257, 530}) Check({.n = 35, .cols = 96, .rows = rows});
  for (int64_t cols : {32, 64, 288, 416}) {
    Check({.n = 40, .cols = cols, .rows = 20});
    Check({.n = 40, .cols = cols, .rows = 20, .weight = DType::kQ8_0});
  }
  Check({.n = 70, .cols = 288, .rows = 257, .weight = DType::kQ5_1});
}

TEST_CASE("Blocks that share rows add up, where memory for that allows it", "[cuda]") {
  for (DType weight : {DType::kQ4_0, DType::kQ8_0}) {
    Check({.n = 50, .cols = 1536, .rows = 40, .weight = weight, .times = 3});
    Check({.n = 130, .cols = 1536, .rows = 40, .weight = weight, .out_f32 = false});
    // Room for the parts of two blocks; for none.
    for (int64_t parts : {2, 0}) {
      Check({.n = 50,
             .cols = 1536,
             .rows = 40,
             .weight = weight,
             .workspace_bytes = std::max<int64_t>(parts * 64 * 256 * 4, 32 << 10)});
    }
  }
}

TEST_CASE("Outputs of codes get every epilogue, together or one by one", "[cuda]") {
  for (int64_t out_pad : {0, 4, 3}) {
    for (bool out_f32 : {true, false}) {
      Case c{.n = 40, .cols = 128, .rows = 88, .out_f32 = out_f32, .out_pad = out_pad};
      c.bias = true;
      c.activation = Activation::kGelu;
      Check(c);
      c.activation = Activation::kNone;
      c.epilogue = Epilogue::kAdd;
      Check(c);
      c.epilogue = Epilogue::kGated;
      for (int64_t rows : {88, 42, 600}) {  // 42: 21 outputs, never four at a time
        c.rows = rows;
        for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          c.activation = activation;
          Check(c);
        }
      }
    }
  }
  // Parts of gated outputs, added up.
  Check({.n = 40,
         .cols = 1536,
         .rows = 88,
         .weight = DType::kQ4_K,
         .epilogue = Epilogue::kGated,
         .activation = Activation::kSilu,
         .bias = true,
         .out_f32 = false});
}

TEST_CASE("Producers and consumers may run in any order", "[cuda]") {
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  Check({.n = 65, .cols = 1152, .rows = 37});
  Check({.n = 40, .cols = 1280, .rows = 270, .weight = DType::kQ6_K});
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("Devices without sm_90a take codes in passes of 32 rows, or dequantise", "[cuda]") {
  cuda::emulate::SetMachine({.compute_major = 8});
  for (int64_t n : {33, 70, 140}) {
    Check({.n = n, .cols = 160, .rows = 37}, n > 128);
    Check({.n = n, .cols = 160, .rows = 37, .weight = DType::kQ8_0, .out_f32 = false}, n > 64);
  }
  cuda::emulate::SetMachine({});
}

// By hand, for 8192 x 8192 in Q4_0: 37.7 MB of codes and scales, 134 MB as BF16. Dequantising moves
// 172 MB before the product begins, 40 us at 4.3 TB/s; at 512 rows the products take 123 us (560
// TFLOP/s) and 98 (700); at 2048, 491 and 393. Without sm_90a a pass of 32 rows costs as much as 63
// MB, the way through memory 306: four passes.
TEST_CASE("Codes are dequantised in memory where faster products make up for it", "[cuda]") {
  const auto weight = PackedLayout(WeightLayout::kInt4, 8192, 8192);
  for (int64_t n : {33, 64, 128, 512}) {
    CHECK(cuda::ChooseManyRows(weight, n, true) == LinearWay::kMixed);
  }
  CHECK(cuda::PredictMixedNs(weight, 512) == Approx(123e3).epsilon(0.01));
  CHECK(cuda::PredictDequantizedNs(weight, 512) == Approx(138e3).epsilon(0.01));
  CHECK(cuda::ChooseManyRows(weight, 2048, true) == LinearWay::kDequantized);
  CHECK(cuda::ChooseManyRows(weight, 128, false) == LinearWay::kFewRows);
  CHECK(cuda::ChooseManyRows(weight, 129, false) == LinearWay::kDequantized);
  const auto bytes = PackedLayout(WeightLayout::kInt8, 8192, 8192);  // 71 MB, 119 a pass
  CHECK(cuda::ChooseManyRows(bytes, 64, false) == LinearWay::kFewRows);
  CHECK(cuda::ChooseManyRows(bytes, 96, false) == LinearWay::kDequantized);
}

TEST_CASE("Chunks of a mixture grow with the rows that an expert gets", "[cuda]") {
  for (bool hopper : {true, false}) {
    CHECK(cuda::ChooseChunkRows(64, 8, hopper) == 8);
    CHECK(cuda::ChooseChunkRows(128, 8, hopper) == 32);
  }
  CHECK(cuda::ChooseChunkRows(400, 8, true) == 64);
  CHECK(cuda::ChooseChunkRows(4096, 8, true) == 128);
  CHECK(cuda::ChooseChunkRows(4096, 8, false) == 32);
}

// Loads that no chunk fits: none, few, a chunk and one, several chunks.
TEST_CASE("Experts with uneven loads get the rows that chose them, in every format", "[cuda]") {
  constexpr int64_t kHidden = 96, kInter = 64;
  struct Load {
    std::vector<int64_t> pairs;  // by expert
    int32_t top_k;
  };
  for (const Load& load : {Load{{0, 5, 65, 120}, 2}, Load{{3, 129, 260}, 1}, Load{{300}, 1}}) {
    const auto n_experts = static_cast<int32_t>(load.pairs.size());
    const int64_t n_pairs = std::accumulate(load.pairs.begin(), load.pairs.end(), int64_t{0});
    std::vector<int32_t> experts;
    for (int32_t e = 0; e < n_experts; ++e) {
      experts.insert(experts.end(), static_cast<size_t>(load.pairs[static_cast<size_t>(e)]), e);
    }
    std::vector<int32_t> dealt(experts.size());  // choices of a row are of different experts
    for (size_t i = 0; i < experts.size(); ++i) dealt[i * 97 % experts.size()] = experts[i];
    REQUIRE(cuda::ChooseChunkRows(n_pairs, n_experts, true) > 32);
    for (DType dtype :
         {DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kMXFP4, DType::kF8G32}) {
      if (load.top_k == 1 && dtype != DType::kBF16 && dtype != DType::kQ4_1) continue;
      INFO(Info(dtype).name << ", " << n_experts << " experts");
      Random random(7);
      std::vector<TestWeight> ups, downs;
      for (int32_t e = 0; e < n_experts; ++e) {
        ups.push_back(MakeWeight(random, dtype, kInter, kHidden));
        ups.push_back(MakeWeight(random, dtype, kInter, kHidden));
        downs.push_back(MakeWeight(random, dtype, kHidden, kInter));
      }
      const std::vector<float> up_bias = random.Normals(n_experts * 2 * kInter);
      const std::vector<float> down_bias = random.Normals(n_experts * kHidden);
      std::vector<float> shares;
      for (int64_t i = 0; i < n_pairs; ++i) shares.push_back(random.Uniform(0.2f, 1.0f));
      const int64_t n = n_pairs / load.top_k;
      Matrix x = Matrix::RandomOf(random, n, kHidden);
      Matrix zeros(n, kHidden), inner(n_pairs, kInter), rows(n_pairs, kHidden);
      { Activations rounded(DType::kBF16, x); }
      auto run = [&](Device& device, DType type) {
        Activations own_x(type, x), own_inner(type, inner), own_rows(type, rows);
        Activations out(type, zeros, /*pad=*/3);
        auto pack = [&](const std::vector<TestWeight>& weights) {
          std::vector<WeightSource> sources;
          for (const TestWeight& weight : weights) sources.push_back(weight.source());
          auto packed = device.PackStack(sources, n_experts);
          REQUIRE(packed.ok());
          return std::move(packed).value();
        };
        const auto up = pack(ups), down = pack(downs);
        MustRun(device, [&](Ops& ops) {
          ops.ExpertMix({.x = own_x.tensor(),
                         .experts = dealt.data(),
                         .weights = shares.data(),
                         .top_k = load.top_k,
                         .up = up.get(),
                         .down = down.get(),
                         .up_bias = up_bias.data(),
                         .down_bias = down_bias.data(),
                         .activation = Activation::kSilu,
                         .inner = own_inner.tensor(),
                         .rows = own_rows.tensor(),
                         .out = out.tensor()});
        });
        CHECK(out.GapsIntact());
        return out;
      };
      const Activations expected = run(*CreateReferenceDevice(), DType::kF32);
      const Activations found = run(*EmulatedDevice(DType::kBF16), DType::kBF16);
      double error = 0, size = 0;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t c = 0; c < kHidden; ++c) {
          error = std::max<double>(error, std::fabs(found(t, c) - expected(t, c)));
          size = std::max<double>(size, std::fabs(expected(t, c)));
        }
      }
      // Values of weights, inner values, products and the sum are each rounded once to BF16.
      CHECK(error < size * 4 * 0x1p-8);
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
