// Ops that change each element of a row by itself, of every level, against the reference and by
// hand.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

TEST_CASE("xIELU is that of its formula on either side of zero", "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    std::vector<float> x = {2.0f, 0.0f, -1e-7f, -1e-3f, -1.0f, -50.0f};
    XieluArgs args{.x = {x.data(), 2, 3, 3}};
    args.alpha_positive = 0.5f;
    args.alpha_negative = 2.0f;
    REQUIRE(device->Run([&](Ops& ops) { ops.Xielu(args); }).ok());
    CHECK(x[0] == Approx(0.5 * 4 + 0.5 * 2));
    // At and just below zero, the exponential is that of eps.
    CHECK(x[1] == Approx(2 * std::expm1(-1e-6)));
    CHECK(x[2] == Approx(2 * (std::expm1(-1e-6) + 1e-7) - 0.5e-7).epsilon(1e-4));
    CHECK(x[3] == Approx(2 * (std::expm1(-1e-3) + 1e-3) - 0.5e-3).epsilon(1e-4));
    CHECK(x[4] == Approx(2 * (std::expm1(-1.0) + 1.0) - 0.5));
    CHECK(x[5] == Approx(2 * (-1.0 + 50.0) - 25.0));
  }
}

TEST_CASE("Queries are sharpened by the logarithm of their position", "[kernels][kernel]") {
  const BatchSpec spec{{{1, 7}, {3, 16}}};
  TestBatch batch(spec, 3);
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    std::vector<float> x(8, 3.0f);
    REQUIRE(device->Plan(batch.view()).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.Sharpen({{x.data(), 4, 2, 2}, 0.1f, 7, 0}); }).ok());
    for (size_t t = 0; t < 4; ++t) {
      const double factor = 1.0 + 0.1 * std::log(1.0 + batch.positions[t] / 7);
      CHECK(x[2 * t] == Approx(3.0 * factor));
      CHECK(x[2 * t + 1] == Approx(3.0 * factor));
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
