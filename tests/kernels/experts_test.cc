// Routing and mixtures of experts: the reference by hand arithmetic, every CPU level against the
// reference.
#include <cmath>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "kernels/kv_element.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed RunRoute(Device& device, Tensor logits, const RouteRule& rule,
                const std::vector<float>& choice_bias = {}) {
  const auto n = static_cast<size_t>(logits.rows * rule.top_k);
  Routed routed{std::vector<int32_t>(n), std::vector<float>(n)};
  REQUIRE(device
              .Run([&](Ops& ops) {
                ops.Route({.logits = logits,
                           .choice_bias = choice_bias.empty() ? nullptr : choice_bias.data(),
                           .rule = rule,
                           .experts = routed.experts.data(),
                           .weights = routed.weights.data()});
              })
              .ok());
  return routed;
}

std::vector<NamedDevice> AllDevices() {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  return devices;
}

TEST_CASE("Softmax routing by hand: best first, renormalised and scaled", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    // Probabilities 0.1, 0.4, 0.2, 0.3.
    float logits[] = {0.0f, std::log(4.0f), std::log(2.0f), std::log(3.0f)};
    const Tensor row{logits, 1, 4, 4};
    Routed plain = RunRoute(*device, row, {.top_k = 2});
    CHECK(plain.experts == std::vector<int32_t>{1, 3});
    CHECK(plain.weights[0] == Approx(0.4));
    CHECK(plain.weights[1] == Approx(0.3));
    Routed scaled = RunRoute(*device, row, {.top_k = 2, .renormalise = true, .scale = 2.0f});
    CHECK(scaled.weights[0] == Approx(2 * 4.0 / 7));
    CHECK(scaled.weights[1] == Approx(2 * 3.0 / 7));
  }
}

TEST_CASE("An offset of the sum of scores by hand, and scores that are all zero",
          "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    float logits[] = {0.0f, -50.0f, 0.0f, 0.0f};  // sigmoids of one half, and of nothing
    const Tensor row{logits, 1, 4, 4};
    RouteRule rule = {
        .score = RouteScore::kSigmoid, .top_k = 2, .renormalise = true, .sum_offset = 0.25f};
    const Routed offset = RunRoute(*device, row, rule);
    CHECK(offset.weights[0] == Approx(0.5 / 1.25));
    CHECK(offset.weights[1] == Approx(0.5 / 1.25));
    rule.sum_offset = RouteRule().sum_offset;
    float nothing[] = {-200.0f, -200.0f, -200.0f, -200.0f};
    const Routed none = RunRoute(*device, {nothing, 1, 4, 4}, rule);
    CHECK(none.weights[0] == Approx(0.0).margin(1e-6));
    CHECK(none.weights[1] == Approx(0.0).margin(1e-6));
  }
}

TEST_CASE("Scores that round to the same number leave the choice to the logits",
          "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    float logits[] = {20.0f, 40.0f, 30.0f, -200.0f,
                      -150.0f};  // logistic 1 three times, and 0 twice
    const Tensor row{logits, 1, 5, 5};
    const RouteRule rule{.score = RouteScore::kSigmoid, .top_k = 4};
    CHECK(RunRoute(*device, row, rule).experts == std::vector<int32_t>{1, 2, 0, 4});
  }
}

TEST_CASE("A bias for choosing changes the choice and not the weight", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    float logits[] = {0.0f, std::log(3.0f), -std::log(3.0f)};  // sigmoids 0.5, 0.75, 0.25
    const Tensor row{logits, 1, 3, 3};
    const RouteRule rule{.score = RouteScore::kSigmoid, .top_k = 2};
    CHECK(RunRoute(*device, row, rule).experts == std::vector<int32_t>{1, 0});
    Routed biased = RunRoute(*device, row, rule, {0.0f, -0.6f, 1.0f});
    CHECK(biased.experts == std::vector<int32_t>{2, 0});
    CHECK(biased.weights[0] == Approx(0.25));
    CHECK(biased.weights[1] == Approx(0.5));
  }
}

TEST_CASE("Factors of experts come behind the rule's scale and change no choice",
          "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    float logits[] = {0.0f, std::log(4.0f), std::log(2.0f), std::log(3.0f)};
    const float factors[] = {100.0f, 0.5f, 7.0f, 3.0f};
    int32_t experts[2];
    float weights[2];
    REQUIRE(device
                ->Run([&](Ops& ops) {
                  ops.Route({.logits = {logits, 1, 4, 4},
                             .expert_scale = factors,
                             .rule = {.top_k = 2, .renormalise = true, .scale = 2.0f},
                             .experts = experts,
                             .weights = weights});
                })
                .ok());
    CHECK(experts[0] == 1);
    CHECK(experts[1] == 3);
    CHECK(weights[0] == Approx(2 * 4.0 / 7 * 0.5));
    CHECK(weights[1] == Approx(2 * 3.0 / 7 * 3));
  }
}

TEST_CASE("Only experts of the best groups are chosen", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    // Groups {0, 1}, {2, 3}, {4, 5}: the best single expert is in the first group, the best pair
    // is the last group, where two values tie.
    float logits[] = {3.0f, -9.0f, 1.0f, 1.5f, 2.0f, 2.0f};
    const Tensor row{logits, 1, 6, 6};
    RouteRule rule{
        .score = RouteScore::kSigmoid, .top_k = 2, .n_groups = 3, .top_groups = 1, .group_best = 1};
    CHECK(RunRoute(*device, row, rule).experts == std::vector<int32_t>{0, 1});
    rule.group_best = 2;
    CHECK(RunRoute(*device, row, rule).experts == std::vector<int32_t>{4, 5});
    rule.top_groups = 2;  // sigmoids of 1 and 1.5 beat those of 3 and -9
    CHECK(RunRoute(*device, row, rule).experts == std::vector<int32_t>{4, 5});
    rule.top_k = 3;
    CHECK(RunRoute(*device, row, rule).experts == std::vector<int32_t>{4, 5, 3});
  }
}

TEST_CASE("Routing of random rows is that of the reference", "[kernels][kernel]") {
  auto reference = CreateReferenceDevice();
  for (auto& [name, device] : CpuDevices(2)) {
    for (int32_t experts : {1, 8, 60, 256}) {
      for (int32_t n_groups : {1, 4}) {
        if (experts % n_groups != 0) continue;
        INFO(name << " " << experts << " experts in " << n_groups << " groups");
        Random random(static_cast<uint32_t>(experts));
        Matrix logits = Matrix::RandomOf(random, 19, experts, /*pad=*/3);
        const std::vector<float> bias = random.Normals(experts);
        const RouteRule rule{.score = n_groups == 1 ? RouteScore::kSoftmax : RouteScore::kSigmoid,
                             .top_k = std::min(experts, 4),
                             .n_groups = n_groups,
                             .top_groups = std::min(n_groups, 2),
                             .group_best = std::min(2, experts / n_groups),
                             .renormalise = n_groups > 1,
                             .scale = 1.5f};
        Routed expected = RunRoute(*reference, logits.tensor(), rule, bias);
        Routed found = RunRoute(*device, logits.tensor(), rule, bias);
        CHECK(found.experts == expected.experts);
        for (size_t i = 0; i < found.weights.size(); ++i) {
          CHECK(found.weights[i] == Approx(expected.weights[i]).epsilon(1e-5));
        }
      }
    }
  }
}

TEST_CASE("Squared ReLU and the clamped SwiGLU by hand", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    auto multiply = [&](std::vector<float> rows, Epilogue epilogue, Activation activation) {
      float x = 1.0f, out = 0.0f;
      std::vector<WeightSource> sources;
      for (float& row : rows) sources.push_back({&row, DType::kF32, 1, 1, "row"});
      auto weight = device->Pack(sources);
      REQUIRE(weight.ok());
      REQUIRE(device
                  ->Run([&](Ops& ops) {
                    ops.Linear({.x = {&x, 1, 1, 1},
                                .weight = weight->get(),
                                .epilogue = epilogue,
                                .activation = activation,
                                .out = {&out, 1, 1, 1}});
                  })
                  .ok());
      return out;
    };
    CHECK(multiply({-3.0f}, Epilogue::kNone, Activation::kRelu2) == 0.0f);
    CHECK(multiply({3.0f}, Epilogue::kNone, Activation::kRelu2) == 9.0f);
    auto swiglu = [&](float gate, float up) {
      return multiply({gate, up}, Epilogue::kGated, Activation::kClampedSwiglu);
    };
    CHECK(swiglu(0.0f, 5.0f) == 0.0f);
    // sigmoid(1.702 * 1) = 0.845795...
    CHECK(swiglu(1.0f, 1.0f) == Approx(2 / (1 + std::exp(-1.702))).epsilon(1e-5));
    CHECK(swiglu(50.0f, 50.0f) == Approx(7 / (1 + std::exp(-1.702 * 7)) * 8).epsilon(1e-5));
    CHECK(swiglu(-2.0f, -50.0f) == Approx(-2 / (1 + std::exp(1.702 * 2)) * -6).epsilon(1e-5));
  }
}

// A layer of experts with its weights in `dtype`.
struct Experts {
  Experts(Device& device, Random& random, DType dtype, int32_t count, int64_t hidden, int64_t inter,
          bool is_gated)
      : gated(is_gated) {
    for (int32_t e = 0; e < count; ++e) {
      for (int i = 0; i < (gated ? 2 : 1); ++i) {
        ups.push_back(MakeWeight(random, dtype, inter, hidden));
      }
      downs.push_back(MakeWeight(random, dtype, hidden, inter));
    }
    up_bias = random.Normals(count * inter * (gated ? 2 : 1));
    down_bias = random.Normals(count * hidden);
    up = Pack(device, ups, count);
    down = Pack(device, downs, count);
  }

  static std::unique_ptr<PackedStack> Pack(Device& device, const std::vector<TestWeight>& weights,
                                           int32_t count) {
    std::vector<WeightSource> sources;
    for (const TestWeight& weight : weights) sources.push_back(weight.source());
    auto packed = device.PackStack(sources, count);
    REQUIRE(packed.ok());
    return std::move(packed).value();
  }

  Matrix Mix(Device& device, Tensor x, const Routed& routed, int32_t top_k,
             int32_t first_expert = 0) const {
    Matrix inner(x.rows * top_k, down->cols), rows(x.rows * top_k, x.cols);
    Matrix out(x.rows, x.cols, /*pad=*/3);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t c = 0; c < x.cols; ++c) *out.at(t, c) = static_cast<float>(c % 3);
    }
    REQUIRE(device
                .Run([&](Ops& ops) {
                  ops.ExpertMix({.x = x,
                                 .experts = routed.experts.data(),
                                 .weights = routed.weights.data(),
                                 .top_k = top_k,
                                 .first_expert = first_expert,
                                 .up = up.get(),
                                 .down = down.get(),
                                 .up_bias = up_bias.data(),
                                 .down_bias = down_bias.data(),
                                 .gated = gated,
                                 .activation = gated ? Activation::kSilu : Activation::kRelu,
                                 .inner = inner.tensor(),
                                 .rows = rows.tensor(),
                                 .out = out.tensor()});
                })
                .ok());
    CHECK(out.GapsIntact());
    return out;
  }

  bool gated;
  std::vector<TestWeight> ups, downs;
  std::vector<float> up_bias, down_bias;
  std::unique_ptr<PackedStack> up, down;
};

Routed RandomRoutes(Random& random, int64_t rows, int32_t top_k, int32_t experts) {
  Routed routed;
  for (int64_t i = 0; i < rows * top_k; ++i) {
    routed.experts.push_back(random.Below(experts));
    routed.weights.push_back(random.Uniform(0.1f, 1.0f));
  }
  return routed;
}

// The largest error, relative to the root mean square.
double LargestError(const Matrix& found, const Matrix& expected) {
  double error = 0, squares = 0;
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t c = 0; c < found.num_cols(); ++c) {
      error = std::max<double>(error, std::fabs(found(t, c) - expected(t, c)));
      squares += std::pow(double{expected(t, c)}, 2);
    }
  }
  return error / std::sqrt(squares / static_cast<double>(found.num_rows() * found.num_cols()));
}

TEST_CASE("A mixture of experts is that of the reference in every format", "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
      for (bool gated : {true, false}) {
        for (int64_t rows : {1, 2, 37}) {
          INFO(name << " " << Info(dtype).name << " gated " << gated << " rows " << rows);
          Random random(11), same(11);
          auto reference = CreateReferenceDevice();
          Experts own(*device, random, dtype, 5, 96, 64, gated);
          Experts plain(*reference, same, dtype, 5, 96, 64, gated);
          const Routed routed = RandomRoutes(random, rows, 3, 5);
          Matrix x = Matrix::RandomOf(random, rows, 96, /*pad=*/5, /*shift=*/1);
          const double error = LargestError(own.Mix(*device, x.tensor(), routed, 3),
                                            plain.Mix(*reference, x.tensor(), routed, 3));
          // Integer kernels round what they read to steps of the largest of 32, about 2.5 times
          // the root mean square, / 127: 2.5 / 127 / sqrt(12) = 0.6 % in each of three products.
          // Products of two of them have long tails: 8 standard deviations for the largest of
          // thousands.
          // BF16 dot products round to 8 bits of mantissa: 2^-8 at most, 0.16 % in the mean.
          double each = dtype == DType::kQ8_0 || dtype == DType::kQ4_0 ? 0.006 : 0.0;
          if (dtype == DType::kBF16 && MultipliesBf16(name)) each = 0.0016;
          CHECK(error < 8 * each * std::sqrt(3.0) + 1e-5);
        }
      }
    }
  }
}

TEST_CASE("Experts that are elsewhere add nothing", "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    Random random(17);
    const Experts here(*device, random, DType::kF32, 2, 96, 64, /*is_gated=*/true);
    Matrix x = Matrix::RandomOf(random, 3, 96);
    // Experts 3 and 4 are here: row 0 chose none of them, row 1 one, and row 2 both.
    const Routed routed{.experts = {0, 2, 1, 4, 3, 4}, .weights = {1, 1, 1, 2, 3, 4}};
    Matrix part = here.Mix(*device, x.tensor(), routed, 2, /*first_expert=*/3);
    const Routed local{.experts = {0, 0, 0, 1, 0, 1}, .weights = {0, 0, 0, 2, 3, 4}};
    Matrix all = here.Mix(*device, x.tensor(), local, 2);
    for (int64_t c = 0; c < 96; ++c) {
      CHECK(part(0, c) == static_cast<float>(c % 3));
      CHECK(part(1, c) == Approx(all(1, c)).margin(1e-5));
      CHECK(part(2, c) == all(2, c));
    }
  }
}

TEST_CASE("A row's mixture has the same bits alone and beside any other rows",
          "[kernels][kernel]") {
  for (auto& [name, device] : CpuDevices(2)) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kQ4_0}) {
      INFO(name << " " << Info(dtype).name);
      Random random(12);
      Experts experts(*device, random, dtype, 4, 64, 96, true);
      const Routed routed = RandomRoutes(random, 30, 2, 4);
      Matrix x = Matrix::RandomOf(random, 30, 64);
      const Matrix all = experts.Mix(*device, x.tensor(), routed, 2);
      for (int64_t t = 0; t < 30; ++t) {
        const auto i = static_cast<size_t>(2 * t);
        const Routed own{{routed.experts[i], routed.experts[i + 1]},
                         {routed.weights[i], routed.weights[i + 1]}};
        const Matrix alone = experts.Mix(*device, x.rows(t, t + 1), own, 2);
        for (int64_t c = 0; c < 64; ++c) REQUIRE(alone(0, c) == all(t, c));
      }
    }
  }
}

TEST_CASE("Each head has a matrix of its own, and carries columns over", "[kernels][kernel]") {
  constexpr int32_t kHeads = 3;
  constexpr int64_t kIn = 32, kOut = 40, kCarried = 6;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Random random(14);
    std::vector<TestWeight> heads;
    std::vector<WeightSource> sources;
    for (int32_t h = 0; h < kHeads; ++h) heads.push_back(MakeWeight(random, dtype, kOut, kIn));
    for (const TestWeight& head : heads) sources.push_back(head.source());
    Matrix x = Matrix::RandomOf(random, 5, kHeads * (kIn + kCarried), /*pad=*/3);
    for (auto& [name, device] : AllDevices()) {
      INFO(name << " " << Info(dtype).name);
      auto stack = device->PackStack(sources, kHeads);
      REQUIRE(stack.ok());
      Matrix out(5, kHeads * (kCarried + kOut), /*pad=*/2);
      REQUIRE(device
                  ->Run([&](Ops& ops) {
                    ops.HeadLinear({.x = x.tensor(),
                                    .x_step = kIn + kCarried,
                                    .heads = stack->get(),
                                    .carried = kCarried,
                                    .out = out.tensor(),
                                    .out_step = kCarried + kOut});
                  })
                  .ok());
      CHECK(out.GapsIntact());
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t h = 0; h < kHeads; ++h) {
          const float* in = x.at(t, h * (kIn + kCarried));
          for (int64_t c = 0; c < kCarried; ++c) {
            REQUIRE(out(t, h * (kCarried + kOut) + c) == in[kIn + c]);
          }
          for (int64_t r = 0; r < kOut; ++r) {
            double y = 0, size = 0;
            for (int64_t k = 0; k < kIn; ++k) {
              const double product =
                  double{in[k]} * heads[static_cast<size_t>(h)].decoded[r * kIn + k];
              y += product;
              size += std::fabs(product);
            }
            // Dot products in BF16 round their inputs to it, by 2^-9 at most.
            const double margin = 1e-4 + (dtype == DType::kBF16 ? size * 0x1p-9 : 0.0);
            REQUIRE(out(t, h * (kCarried + kOut) + kCarried + r) == Approx(y).margin(margin));
          }
        }
      }
    }
  }
}

TEST_CASE("A cache of keys alone gets no values", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    TestBatch batch({{{3, 3}}});
    TestCache cache(DType::kF32, batch.num_pages, 16, 1, 8, 1);
    cache.view.values = cache.view.keys;
    Random random(15);
    Matrix q = Matrix::RandomOf(random, 3, 16);
    Matrix k = Matrix::RandomOf(random, 3, 8);
    const std::vector<float> second(k.at(1, 0), k.at(1, 0) + 8);
    REQUIRE(device->Plan(batch.view()).ok());
    REQUIRE(device
                ->Run([&](Ops& ops) {
                  ops.RopeKvWrite(
                      {.q = q.tensor(), .k = k.tensor(), .n_heads = 2, .cache = cache.view});
                })
                .ok());
    const auto* keys = reinterpret_cast<const float*>(cache.keys.data() +
                                                      RowOffset(cache.view, batch.kv_slot[1], 0));
    CHECK(std::vector<float>(keys, keys + 8) == second);
  }
}

TEST_CASE("Rows are multiplied by the logistic function of their gate", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    float gate[] = {0.0f, std::log(3.0f)};
    Matrix x(2, 5, /*pad=*/2);
    for (int64_t c = 0; c < 5; ++c) *x.at(0, c) = *x.at(1, c) = static_cast<float>(c);
    REQUIRE(device->Run([&](Ops& ops) { ops.GateRows({gate, 2, 1, 1}, x.tensor()); }).ok());
    CHECK(x(0, 4) == 2.0f);
    CHECK(x(1, 4) == Approx(3.0));
    CHECK(x.GapsIntact());
  }
}

TEST_CASE("A stack is refused where its matrices differ in shape", "[kernels][unit]") {
  std::vector<float> data(64);
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    const std::vector<WeightSource> sources = {{data.data(), DType::kF32, 4, 4, "experts.0"},
                                               {data.data(), DType::kF32, 3, 4, "experts.1"}};
    const absl::Status status = device->PackStack(sources, 2).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find("experts.1") != std::string::npos);
    CHECK(absl::IsInvalidArgument(device->PackStack(sources, 3).status()));
    CHECK(absl::IsInvalidArgument(device->PackStack({}, 1).status()));
  }
}

}  // namespace
}  // namespace heddle::kernels::test
