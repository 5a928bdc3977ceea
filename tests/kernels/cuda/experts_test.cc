// Routing and mixtures of experts on the emulated CUDA device against the reference.
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr DType kActivations[] = {DType::kBF16, DType::kF32};

TEST_CASE("Routing chooses the reference's experts with its weights", "[cuda]") {
  for (int32_t experts : {1, 6, 64, 96}) {
    for (int32_t n_groups : {1, 2}) {
      if (experts % n_groups != 0) continue;
      INFO(experts << " experts in " << n_groups << " groups");
      Random random(static_cast<uint32_t>(experts));
      Matrix logits = Matrix::RandomOf(random, 7, experts);
      const std::vector<float> bias = random.Normals(experts);
      const std::vector<float> scale = random.Normals(experts);
      const RouteRule rule{.score = n_groups == 1 ? RouteScore::kSoftmax : RouteScore::kSigmoid,
                           .top_k = std::min(experts, 3),
                           .n_groups = n_groups,
                           .top_groups = 1,
                           .group_best = std::min(2, experts / n_groups),
                           .renormalise = n_groups > 1,
                           .sum_offset = 0.125f,
                           .scale = 2.5f};
      auto run = [&](Device& device, std::vector<int32_t>* chosen, std::vector<float>* weights) {
        chosen->resize(static_cast<size_t>(int64_t{7} * rule.top_k));
        weights->resize(chosen->size());
        MustRun(device, [&](Ops& ops) {
          ops.Route({.logits = logits.tensor(),
                     .choice_bias = bias.data(),
                     .expert_scale = n_groups > 1 ? scale.data() : nullptr,
                     .rule = rule,
                     .experts = chosen->data(),
                     .weights = weights->data()});
        });
      };
      std::vector<int32_t> expected, found;
      std::vector<float> expected_weights, found_weights;
      run(*CreateReferenceDevice(), &expected, &expected_weights);
      run(*EmulatedDevice(DType::kBF16), &found, &found_weights);
      CHECK(found == expected);
      for (size_t i = 0; i < found_weights.size(); ++i) {
        CHECK(found_weights[i] == Approx(expected_weights[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("Equal scores go to the lower index, twice the best counts twice", "[cuda]") {
  float logits[] = {1.0f, 1.0f, 0.5f, 1.2f, 1.0f, 0.0f};
  int32_t experts[2];
  float weights[2];
  auto device = EmulatedDevice(DType::kF32);
  auto route = [&](const RouteRule& rule) {
    MustRun(*device, [&](Ops& ops) {
      ops.Route(
          {.logits = {logits, 1, 6, 6}, .rule = rule, .experts = experts, .weights = weights});
    });
    return std::vector<int32_t>{experts[0], experts[1]};
  };
  CHECK(route({.top_k = 2}) == std::vector<int32_t>{3, 0});
  // Groups of three: sigmoids of 1 and 1 lie below those of 1.2 and 1, above those of 1.2 and 0.
  RouteRule rule{.score = RouteScore::kSigmoid, .top_k = 2, .n_groups = 2, .group_best = 2};
  CHECK(route(rule) == std::vector<int32_t>{3, 4});
  logits[4] = 0.0f;
  CHECK(route(rule) == std::vector<int32_t>{0, 1});
}

std::unique_ptr<PackedStack> Pack(Device& device, const std::vector<TestWeight>& weights,
                                  int32_t count) {
  std::vector<WeightSource> sources;
  sources.reserve(weights.size());
  for (const TestWeight& weight : weights) sources.push_back(weight.source());
  auto packed = device.PackStack(sources, count);
  REQUIRE(packed.ok());
  return std::move(packed).value();
}

TEST_CASE("A mixture of experts is that of the reference in every format", "[cuda]") {
  // The weights of rows are those of outputs, or for some of the formats of inputs.
  const bool weighs_inputs = GENERATE(false, true);
  constexpr int32_t kExperts = 3, kTopK = 2;
  constexpr int64_t kHidden = 64, kInter = 32;
  for (DType act : kActivations) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                        DType::kQ4_1, DType::kQ5_1, DType::kMXFP4, DType::kF8G32}) {
      if (weighs_inputs && dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kQ4_0) {
        continue;
      }
      // Some 27 of 40 rows share an expert: chunks of 32, the last one partly filled.
      for (auto [n_rows, activation] :
           {std::pair{int64_t{5}, Activation::kSilu}, {40, Activation::kClampedSwiglu}}) {
        INFO(Info(act).name << " activations, " << Info(dtype).name << " weights");
        Random random(13);
        std::vector<TestWeight> ups, downs;
        for (int32_t e = 0; e < kExperts; ++e) {
          ups.push_back(MakeWeight(random, dtype, kInter, kHidden));
          ups.push_back(MakeWeight(random, dtype, kInter, kHidden));
          downs.push_back(MakeWeight(random, dtype, kHidden, kInter));
        }
        const std::vector<float> up_bias = random.Normals(kExperts * 2 * kInter);
        const std::vector<float> down_bias = random.Normals(kExperts * kHidden);
        std::vector<int32_t> experts;
        std::vector<float> weights;
        // The middle ones of five experts are here, or all of three.
        const int32_t first = n_rows == 5 ? 1 : 0;
        for (int64_t i = 0; i < n_rows * kTopK; ++i) {
          experts.push_back(random.Below(kExperts + 2 * first));
          weights.push_back(random.Uniform(0.2f, 1.0f));
        }
        Matrix x = Matrix::RandomOf(random, n_rows, kHidden);
        Matrix zeros(n_rows, kHidden), inner(n_rows * kTopK, kInter), rows(n_rows * kTopK, kHidden);
        { Activations rounded(act, x); }
        auto run = [&, activation = activation](Device& device, DType type) {
          Activations own_x(type, x), own_inner(type, inner), own_rows(type, rows);
          Activations out(type, zeros, /*pad=*/3);
          auto up = Pack(device, ups, kExperts);
          auto down = Pack(device, downs, kExperts);
          MustRun(device, [&](Ops& ops) {
            ops.ExpertMix({.x = own_x.tensor(),
                           .experts = experts.data(),
                           .weights = weights.data(),
                           .top_k = kTopK,
                           .first_expert = first,
                           .up = up.get(),
                           .down = down.get(),
                           .up_bias = up_bias.data(),
                           .down_bias = down_bias.data(),
                           .activation = activation,
                           .inner = own_inner.tensor(),
                           .rows = own_rows.tensor(),
                           .out = out.tensor(),
                           .weighs_inputs = weighs_inputs});
          });
          CHECK(out.GapsIntact());
          return out;
        };
        const Activations expected = run(*CreateReferenceDevice(), DType::kF32);
        const Activations found = run(*EmulatedDevice(act), act);
        double error = 0, size = 0;
        for (int64_t t = 0; t < n_rows; ++t) {
          for (int64_t c = 0; c < kHidden; ++c) {
            error = std::max<double>(error, std::fabs(found(t, c) - expected(t, c)));
            size = std::max<double>(size, std::fabs(expected(t, c)));
          }
        }
        // BF16: inner values, products, the sum and F32 weights are each rounded once.
        CHECK(error < size * (act == DType::kBF16 ? 4 * 0x1p-8 : 1e-5));
      }
    }
  }
}

struct HeadCase {
  DType dtype = DType::kBF16;
  int64_t rows;  // of x
  int32_t heads;
  int64_t in, out, carried;
  int64_t pad = 3;  // of an output row
};

// Sum of the sizes of an output's products, whose codes may be rounded to BF16; 0: they are not.
double SizeOf(const HeadCase& c, const std::vector<TestWeight>& heads, const Matrix& x, int64_t row,
              int64_t column) {
  const int64_t h = column / (c.carried + c.out), r = column % (c.carried + c.out) - c.carried;
  if (c.dtype == DType::kBF16 || r < 0) return 0;
  double size = 0;
  for (int64_t k = 0; k < c.in; ++k) {
    size += std::fabs(double{x(row, h * (c.in + c.carried) + k)} *
                      heads[static_cast<size_t>(h)].decoded[static_cast<size_t>(r * c.in + k)]);
  }
  return size;
}

void CheckHeads(const HeadCase& c) {
  for (DType act : kActivations) {
    INFO(Info(act).name << ", " << Info(c.dtype).name << " " << c.out << " x " << c.in << ", "
                        << c.rows << " rows, " << c.carried << " carried");
    Random random(16);
    std::vector<TestWeight> heads;
    heads.reserve(static_cast<size_t>(c.heads));
    for (int32_t h = 0; h < c.heads; ++h) {
      heads.push_back(MakeWeight(random, c.dtype, c.out, c.in));
    }
    Matrix x = Matrix::RandomOf(random, c.rows, c.heads * (c.in + c.carried));
    Matrix zeros(c.rows, c.heads * (c.carried + c.out));
    { Activations rounded(act, x); }
    auto run = [&](Device& device, DType type) {
      Activations own(type, x), out(type, zeros, c.pad);
      auto stack = Pack(device, heads, c.heads);
      MustRun(device, [&](Ops& ops) {
        ops.HeadLinear({.x = own.tensor(),
                        .x_step = c.in + c.carried,
                        .heads = stack.get(),
                        .carried = c.carried,
                        .out = out.tensor(),
                        .out_step = c.carried + c.out});
      });
      CHECK(out.GapsIntact());
      return out;
    };
    const Activations expected = run(*CreateReferenceDevice(), DType::kF32);
    const Activations found = run(*EmulatedDevice(act), act);
    for (int64_t t = 0; t < c.rows; ++t) {
      for (int64_t i = 0; i < c.heads * (c.carried + c.out); ++i) {
        const double value = expected(t, i);
        const double rounding = RoundingOf(act, value) + SizeOf(c, heads, x, t, i) * 0x1p-9 + 1e-4;
        const bool near = std::fabs(found(t, i) - value) <= rounding;
        if (!near)
          FAIL("row " << t << ", column " << i << ": " << found(t, i) << ", not " << value);
      }
    }
  }
}

TEST_CASE("Each head has a matrix of its own, and carries columns over", "[cuda]") {
  CheckHeads({.rows = 4, .heads = 3, .in = 32, .out = 10, .carried = 6});
}

TEST_CASE("Heads of many rows are made in tiles", "[cuda]") {
  // By 16 bytes, with rows, outputs and columns that end in a tile.
  CheckHeads({.rows = 131, .heads = 3, .in = 40, .out = 136, .carried = 8, .pad = 8});
  CheckHeads({.rows = 17, .heads = 16, .in = 128, .out = 64, .carried = 0, .pad = 8});
  // One by one.
  CheckHeads({.rows = 90, .heads = 3, .in = 72, .out = 10, .carried = 6});
  CheckHeads({.rows = 33, .heads = 8, .in = 8, .out = 24, .carried = 16, .pad = 1});
  // Codes, and heads that tiles do not take.
  CheckHeads({.dtype = DType::kQ8_0, .rows = 65, .heads = 4, .in = 64, .out = 16, .carried = 0});
  CheckHeads({.rows = 130, .heads = 2, .in = 36, .out = 16, .carried = 4});
}

TEST_CASE("Rows are multiplied by the logistic function of their gate", "[cuda]") {
  for (DType act : kActivations) {
    float gate[] = {0.0f, std::log(3.0f)};
    Matrix values(2, 40);
    for (int64_t c = 0; c < 40; ++c) *values.at(0, c) = *values.at(1, c) = static_cast<float>(c);
    Activations x(act, values, /*pad=*/3);
    auto device = EmulatedDevice(act);
    MustRun(*device, [&](Ops& ops) { ops.GateRows({gate, 2, 1, 1}, x.tensor()); });
    CHECK(x(0, 30) == 15.0f);
    CHECK(x(1, 20) == Approx(15.0f).epsilon(0.005));
    CHECK(x.GapsIntact());
  }
}

}  // namespace
}  // namespace heddle::kernels::test
