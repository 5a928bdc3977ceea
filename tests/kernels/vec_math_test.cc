// Elementary functions of the portable level over their whole range. The other levels compile the
// same source; the ops that use it are compared at every level.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include <bit>
#include <cmath>
#include <limits>

#include "catch2/catch.hpp"

namespace heddle::kernels::cpu {
namespace {

// Distance in units in the last place of `expected`.
double Units(float found, double expected) {
  auto nearest = static_cast<float>(expected);
  double unit = std::fabs(std::nextafter(nearest, kLanes * 1e38f) - nearest);
  return std::fabs(found - expected) / unit;
}

template <typename F, typename G>
double WorstUnits(const F& function, const G& exact, float from, float to) {
  double worst = 0;
  for (uint32_t i = 0; i < 200000; ++i) {
    float x = from + (to - from) * (static_cast<float>(i) / 200000.0f);
    worst = std::max(worst, Units(function(Set(x))[0], exact(x)));
  }
  return worst;
}

TEST_CASE("exp is within two units in the last place", "[kernels][unit]") {
  auto exact = [](double x) { return std::exp(x); };
  CHECK(WorstUnits(Exp, exact, -86.5f, 88.7f) <= 2.0);
  CHECK(WorstUnits(Exp, exact, -1.0f, 1.0f) <= 2.0);
  float infinity = std::numeric_limits<float>::infinity();
  CHECK(Exp(Set(-infinity))[0] == 0.0f);
  CHECK(Exp(Set(infinity))[0] == infinity);
  CHECK(Exp(Set(88.73f))[0] == infinity);
  CHECK(Exp(Set(-200.0f))[0] == 0.0f);
  CHECK(Exp(Set(0.0f))[0] == 1.0f);
  CHECK(std::isnan(Exp(Set(std::numeric_limits<float>::quiet_NaN()))[0]));
}

TEST_CASE("exp of what is not positive is as good as exp", "[kernels][unit]") {
  auto exact = [](double x) { return std::exp(x); };
  CHECK(WorstUnits(ExpOfNegative, exact, -86.5f, 0.0f) <= 2.0);
  CHECK(ExpOfNegative(Set(0.0f))[0] == 1.0f);
  CHECK(ExpOfNegative(Set(-1e30f))[0] == 0.0f);
  CHECK(ExpOfNegative(Set(-std::numeric_limits<float>::infinity()))[0] == 0.0f);
  CHECK(std::isnan(ExpOfNegative(Set(std::numeric_limits<float>::quiet_NaN()))[0]));
}

TEST_CASE("tanh keeps its relative precision near zero and saturates", "[kernels][unit]") {
  auto exact = [](double x) { return std::tanh(x); };
  CHECK(WorstUnits(Tanh, exact, -12.0f, 12.0f) <= 4.0);
  CHECK(WorstUnits(Tanh, exact, 1e-6f, 1e-3f) <= 4.0);
  CHECK(Tanh(Set(100.0f))[0] == Approx(1.0f));
  CHECK(Tanh(Set(-1e30f))[0] == Approx(-1.0f));
}

TEST_CASE("The normal distribution function is good to a few units, tails included",
          "[kernels][unit]") {
  auto exact = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  CHECK(WorstUnits(NormalCdf, exact, -1.0f, 10.0f) <= 8.0);
  // exp(-x^2 / 2) amplifies the rounding of x^2: x^2 / 2 half-units of it.
  CHECK(WorstUnits(NormalCdf, exact, -6.0f, -1.0f) <= 8.0 + 36.0);
}

TEST_CASE("BF16 conversion of vectors is that of scalars", "[kernels][unit]") {
  for (uint32_t bits = 0; bits < 0xff800000u; bits += 65521) {
    float value = std::bit_cast<float>(bits);
    uint16_t found[kLanes];
    ToBF16(found, Set(value));
    uint32_t expected = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    if (std::isnan(value)) {
      CHECK(std::isnan(FromBF16(found)[0]));
    } else if (found[0] != expected) {
      FAIL("bits " << bits);
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
