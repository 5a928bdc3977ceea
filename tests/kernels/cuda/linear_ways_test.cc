// Products on a device that tunes: the ways are timed when a shape is first met, which affects
// nothing but the time, and the result is kept.
#include "kernels/cuda/linear/linear_ways.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/linear/linear_params.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

using cuda::LinearWay;
using cuda::LinearWays;
using cuda::WeightLayout;

constexpr LinearWays::Shape kShape = {
    .layout = WeightLayout::kInt4, .rows = 256, .cols = 128, .n = 40};

TEST_CASE("The fastest way is taken, the predicted one if it is as fast", "[cuda]") {
  LinearWays ways;
  CHECK_FALSE(ways.Fastest(kShape).has_value());
  ways.Learn(kShape, {{LinearWay::kMixed, 1000}, {LinearWay::kDequantized, 900}});
  CHECK(ways.Fastest(kShape) == LinearWay::kDequantized);

  LinearWays close;
  close.Learn(kShape, {{LinearWay::kMixed, 1000}, {LinearWay::kDequantized, 980}});
  CHECK(close.Fastest(kShape) == LinearWay::kMixed);

  LinearWays three;  // what is predicted stays though two others are a little faster
  three.Learn(kShape,
              {{LinearWay::kByCodes, 1000}, {LinearWay::kMixed, 985}, {LinearWay::kFewRows, 975}});
  CHECK(three.Fastest(kShape) == LinearWay::kByCodes);
  CHECK(three.Describe() ==
        std::vector<std::string>{"4-bit 256 x 128, 33 to 64 rows: by codes 1.0 us, few rows at a "
                                 "time 1.0 us, mixed 1.0 us"});
}

TEST_CASE("A way that a device refuses is not taken", "[cuda]") {
  LinearWays ways;
  ways.Learn(kShape, {{LinearWay::kMixed, -1}, {LinearWay::kDequantized, 75'000}});
  CHECK(ways.Fastest(kShape) == LinearWay::kDequantized);
  CHECK(ways.Describe() ==
        std::vector<std::string>{
            "4-bit 256 x 128, 33 to 64 rows: dequantised in memory 75.0 us, mixed does not run"});
}

TEST_CASE("Steps of rows hold all numbers, each between two", "[cuda]") {
  int64_t before = 0;
  for (int64_t n = 1; n <= 5000; ++n) {
    const int64_t step = cuda::RowStepFrom(n);
    REQUIRE(step >= n);
    REQUIRE(cuda::RowStepFrom(step) == step);
    REQUIRE(cuda::RowStepBelow(step) < n);
    if (n == before + 1) {
      CHECK(cuda::RowStepBelow(step) == before);
      before = step;
    }
  }
  CHECK(before == 8192);
}

// A prompt of 200 tokens uses the same way as one of 208, and not as one of 256, which bulk copies
// cut in two.
TEST_CASE("Bulk copies cut all products of a step alike, up to two blocks", "[cuda]") {
  const auto blocks = [](int64_t n) {
    return (n + cuda::kBulkBlockRows - 1) / cuda::kBulkBlockRows;
  };
  for (int64_t n = 1; n <= 2 * cuda::kBulkBlockRows; ++n) {
    INFO(n);
    CHECK(blocks(n) == blocks(cuda::RowStepFrom(n)));
  }
}

TEST_CASE("What is learned is of one matrix and of rows up to a step", "[cuda]") {
  LinearWays ways;
  ways.Learn(kShape, {{LinearWay::kMixed, 1000}});
  const auto with = [](auto change) {
    LinearWays::Shape shape = kShape;
    change(shape);
    return shape;
  };
  for (int64_t n : {33, 64}) {
    CHECK(ways.Fastest(with([n](auto& s) { s.n = n; })) == LinearWay::kMixed);
  }
  for (int64_t n : {32, 65}) {
    CHECK_FALSE(ways.Fastest(with([n](auto& s) { s.n = n; })).has_value());
  }
  CHECK_FALSE(ways.Fastest(with([](auto& s) { s.rows = 255; })).has_value());
  CHECK_FALSE(ways.Fastest(with([](auto& s) { s.cols = 64; })).has_value());
  CHECK_FALSE(ways.Fastest(with([](auto& s) { s.layout = WeightLayout::kInt8; })).has_value());
  CHECK_FALSE(ways.Fastest(with([](auto& s) { s.gated = true; })).has_value());
  CHECK_FALSE(ways.Fastest(with([](auto& s) { s.out_f32 = true; })).has_value());
}

struct Case {
  DType weight = DType::kBF16;
  bool row_scaled = false;
  Epilogue epilogue = Epilogue::kNone;
  int64_t n = 40, cols = 128, rows = 96;
};

// The outputs of one product.
std::vector<float> Product(Device& device, DType act, const Case& c, const TestWeight& weight,
                           Matrix x, Matrix out) {
  const WeightSource source = weight.source();
  auto packed = *device.Pack({&source, 1});
  Activations x_device(act, x), out_device(act, out);
  MustRun(device, [&](Ops& ops) {
    ops.Linear(
        {.x = x_device.tensor(),
         .weight = packed.get(),
         .epilogue = c.epilogue,
         .activation = c.epilogue == Epilogue::kGated ? Activation::kSilu : Activation::kNone,
         .out = out_device.tensor()});
  });
  std::vector<float> values;
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    for (int64_t r = 0; r < out.num_cols(); ++r) values.push_back(out_device(t, r));
  }
  return values;
}

// The distance of `found` from `expected`, as a share of the latter's spread.
double Distance(const std::vector<float>& found, const std::vector<float>& expected) {
  double squares = 0, differences = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    squares += double{expected[i]} * expected[i];
    differences += std::pow(double{found[i]} - expected[i], 2);
  }
  return std::sqrt(differences / squares);
}

// Multiplies twice on a device that tunes.
void Check(Device& device, const Case& c, double tolerance) {
  INFO(Info(c.weight).name << ", epilogue " << static_cast<int>(c.epilogue));
  Random random(static_cast<uint32_t>(c.n + c.rows));
  const TestWeight weight = c.row_scaled ? MakeRowScaledWeight(random, c.weight, c.rows, c.cols)
                                         : MakeWeight(random, c.weight, c.rows, c.cols);
  Matrix x = Matrix::RandomOf(random, c.n, c.cols);
  Matrix out = Matrix::RandomOf(random, c.n, c.epilogue == Epilogue::kGated ? c.rows / 2 : c.rows);
  { Activations rounded(DType::kBF16, x), also(DType::kBF16, out); }
  const auto expected = Product(*CreateReferenceDevice(), DType::kF32, c, weight, x, out);
  const size_t before = device.TimedChoices().size();
  const auto first = Product(device, DType::kBF16, c, weight, x, out);
  const std::vector<std::string> choices = device.TimedChoices();
  CHECK(choices.size() == before + 1);
  const auto second = Product(device, DType::kBF16, c, weight, x, out);
  CHECK(device.TimedChoices() == choices);  // nothing is timed again
  CHECK(first == second);
  CHECK(Distance(first, expected) < tolerance);
}

constexpr double kBF16Tolerance = 0.005;
constexpr double kF8Tolerance = 0.04;  // x in E4M3, too

void CheckAll(Device& device, double f8_tolerance) {
  for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kGated}) {
    Check(device, {.weight = DType::kBF16, .epilogue = epilogue}, kBF16Tolerance);
    Check(device, {.weight = DType::kQ4_0, .epilogue = epilogue}, kBF16Tolerance);
    Check(device, {.weight = DType::kF8G32, .row_scaled = true, .epilogue = epilogue},
          f8_tolerance);
  }
  // These have another shape, as the epilogue is not part of it: each is timed, and adds once.
  Check(device, {.weight = DType::kBF16, .epilogue = Epilogue::kAdd, .rows = 80}, kBF16Tolerance);
  Check(device, {.weight = DType::kQ4_0, .epilogue = Epilogue::kAdd, .rows = 80}, kBF16Tolerance);
  Check(device,
        {.weight = DType::kF8G32, .row_scaled = true, .epilogue = Epilogue::kAdd, .rows = 80},
        f8_tolerance);
}

std::unique_ptr<Device> TunedDevice() {
  return *CreateCudaDevice({.workspace_bytes = int64_t{4} << 20, .graphs = false, .tunes = true});
}

TEST_CASE("Products are right while they are timed, and after", "[cuda]") {
  CheckAll(*TunedDevice(), kBF16Tolerance);
}

TEST_CASE("Products are right while they are timed where a library is one of the ways", "[cuda]") {
  const bool is_late = GENERATE(false, true);
  cuda::emulate::SetMachine({.has_library = true, .is_late = is_late});
  CheckAll(*TunedDevice(), kF8Tolerance);
  cuda::emulate::SetMachine({});
}

TEST_CASE("Products are right while they are timed on devices without sm_90a", "[cuda]") {
  cuda::emulate::SetMachine({.compute_major = 8});
  CheckAll(*TunedDevice(), kBF16Tolerance);
  cuda::emulate::SetMachine({});
}

TEST_CASE("Kernels for sm_90a can be left out", "[cuda]") {
  auto device = *CreateCudaDevice({.graphs = false, .tunes = true, .warpgroups = false});
  Check(*device, {.weight = DType::kBF16}, kBF16Tolerance);
  Check(*device, {.weight = DType::kQ4_0}, kBF16Tolerance);
  for (const std::string& choice : device->TimedChoices()) {
    CHECK(choice.find("bulk") == std::string::npos);
    CHECK(choice.find("mixed") == std::string::npos);
  }
}

TEST_CASE("Without memory to try ways in, a product goes as predicted", "[cuda]") {
  auto device = TunedDevice();
  Random random(1);
  const TestWeight weight = MakeWeight(random, DType::kQ4_0, 96, 128);
  Matrix x = Matrix::RandomOf(random, 40, 128);
  const Matrix out(40, 96);
  const WeightSource source = weight.source();
  auto packed = *device->Pack({&source, 1});
  cuda::emulate::SetMachine({.taken_bytes = int64_t{8} << 30});
  Matrix zeros = out;
  Activations x_device(DType::kBF16, x), out_device(DType::kBF16, zeros);
  MustRun(*device, [&](Ops& ops) {
    ops.Linear({.x = x_device.tensor(), .weight = packed.get(), .out = out_device.tensor()});
  });
  cuda::emulate::SetMachine({});
  CHECK(device->TimedChoices().empty());
  const auto expected =
      Product(*CreateReferenceDevice(), DType::kF32, {.weight = DType::kQ4_0}, weight, x, out);
  std::vector<float> found;
  for (int64_t t = 0; t < 40; ++t) {
    for (int64_t r = 0; r < 96; ++r) found.push_back(out_device(t, r));
  }
  CHECK(Distance(found, expected) < kBF16Tolerance);
}

// Whether rows between two products are left as codes depends on the second product's way, which is
// unknown before it was timed.
TEST_CASE("Rows are left as codes for a product only when it is known to take them", "[cuda]") {
  cuda::emulate::SetMachine({.has_library = true});
  auto device = TunedDevice();
  Random random(3);
  const int64_t n = 40, hidden = 256, inter = 384;
  const TestWeight up = MakeRowScaledWeight(random, DType::kF8G128, 2 * inter, hidden);
  const TestWeight down = MakeRowScaledWeight(random, DType::kF8G128, hidden, inter);
  Matrix x = Matrix::RandomOf(random, n, hidden);
  const auto run = [&](Device& on, DType act) {
    const WeightSource sources[] = {up.source(), down.source()};
    auto up_packed = *on.Pack({&sources[0], 1});
    auto down_packed = *on.Pack({&sources[1], 1});
    Matrix zeros(n, inter), none(n, hidden);
    Activations x_device(act, x), inner(act, zeros), out(act, none);
    std::vector<std::vector<float>> outputs;
    for (int time = 0; time < 3; ++time) {
      MustRun(on, [&](Ops& ops) {
        ops.Linear({.x = x_device.tensor(),
                    .weight = up_packed.get(),
                    .epilogue = Epilogue::kGated,
                    .activation = Activation::kSilu,
                    .out = inner.tensor(),
                    .reader = down_packed.get()});
        ops.Linear({.x = inner.tensor(), .weight = down_packed.get(), .out = out.tensor()});
      });
      outputs.emplace_back();
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t r = 0; r < hidden; ++r) outputs.back().push_back(out(t, r));
      }
    }
    return outputs;
  };
  const auto expected = run(*CreateReferenceDevice(), DType::kF32);
  const auto found = run(*device, DType::kBF16);
  CHECK(device->TimedChoices().size() == 2);
  for (const auto& outputs : found) CHECK(Distance(outputs, expected[0]) < 2 * kF8Tolerance);
  CHECK(found[1] == found[2]);
  cuda::emulate::SetMachine({});
}

TEST_CASE("Where nothing else is known of a product, nothing is timed", "[cuda]") {
  auto device = TunedDevice();
  Random random(1);
  const TestWeight weight = MakeWeight(random, DType::kQ4_0, 96, 128);
  const Matrix x = Matrix::RandomOf(random, 32, 128), out(32, 96);
  Product(*device, DType::kBF16, {.weight = DType::kQ4_0, .n = 32}, weight, x, out);
  CHECK(device->TimedChoices().empty());
}

}  // namespace
}  // namespace heddle::kernels::test
