// Products of many rows and quantised weights on the emulated sm_90a: dequantised on their way to
// the matrix instructions, against the reference, and against the same weights as BF16 in memory.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/cuda/product_case.h"

namespace heddle::kernels::test {
namespace {

using cuda::LinearWay;
using cuda::PackedLayout;
using cuda::WeightLayout;

TEST_CASE("Weights of every format are multiplied as their values in BF16 are", "[cuda]") {
  for (DType weight : kAllTypes) {
    if (weight == DType::kF32 || weight == DType::kF16 || weight == DType::kBF16) continue;
    CheckProduct({.n = 33, .weight = weight});
    CheckProduct({.n = 66, .rows = 20, .weight = weight});
  }
}

TEST_CASE("Weights with one scale per row are multiplied where no library takes them", "[cuda]") {
  for (DType weight : {DType::kF8G128, DType::kInt8G32}) {
    CheckProduct({.n = 40, .weight = weight, .row_scaled = true});
    CheckProduct({.n = 70,
                  .rows = 42,
                  .weight = weight,
                  .epilogue = Epilogue::kGated,
                  .activation = Activation::kSilu,
                  .row_scaled = true});
  }
}

TEST_CASE("Weights with one scale per tile are multiplied where no library takes them", "[cuda]") {
  CheckProduct({.n = 40, .cols = 384, .rows = 150, .weight = DType::kF8G128, .tile_scaled = true});
}

TEST_CASE("Rows and columns need not fill tiles, stages or groups", "[cuda]") {
  for (int64_t n : {33, 64, 65, 129, 300}) CheckProduct({.n = n, .cols = 160, .rows = 37});
  for (int64_t rows : {1, 255, 257, 530}) CheckProduct({.n = 35, .cols = 96, .rows = rows});
  for (int64_t cols : {32, 64, 288, 416}) {
    CheckProduct({.n = 40, .cols = cols, .rows = 20});
    CheckProduct({.n = 40, .cols = cols, .rows = 20, .weight = DType::kQ8_0});
  }
  CheckProduct({.n = 70, .cols = 288, .rows = 257, .weight = DType::kQ5_1});
}

TEST_CASE("Blocks that share rows add up, where memory for that allows it", "[cuda]") {
  for (DType weight : {DType::kQ4_0, DType::kQ8_0}) {
    CheckProduct({.n = 50, .cols = 1536, .rows = 40, .weight = weight, .times = 3});
    CheckProduct({.n = 130, .cols = 1536, .rows = 40, .weight = weight, .out_f32 = false});
    // Room for the parts of two blocks; for none.
    for (int64_t parts : {2, 0}) {
      CheckProduct({.n = 50,
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
      ProductCase c{.n = 40, .cols = 128, .rows = 88, .out_f32 = out_f32, .out_pad = out_pad};
      c.bias = true;
      c.activation = Activation::kGelu;
      CheckProduct(c);
      c.activation = Activation::kNone;
      c.epilogue = Epilogue::kAdd;
      CheckProduct(c);
      c.epilogue = Epilogue::kGated;
      for (int64_t rows : {88, 42, 600}) {  // 42: 21 outputs, never four at a time
        c.rows = rows;
        for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          c.activation = activation;
          CheckProduct(c);
        }
      }
    }
  }
  // Parts of gated outputs, added up.
  CheckProduct({.n = 40,
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
  CheckProduct({.n = 65, .cols = 1152, .rows = 37});
  CheckProduct({.n = 40, .cols = 1280, .rows = 270, .weight = DType::kQ6_K});
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("Devices without sm_90a take codes in passes of 32 rows, or dequantise", "[cuda]") {
  cuda::emulate::SetMachine({.compute_major = 8});
  for (int64_t n : {33, 70, 140}) {
    CheckProduct({.n = n, .cols = 160, .rows = 37}, n > 128);
    CheckProduct({.n = n, .cols = 160, .rows = 37, .weight = DType::kQ8_0, .out_f32 = false},
                 n > 64);
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
          sources.reserve(weights.size());
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
