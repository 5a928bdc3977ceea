#include "kernels/philox.h"

#include "catch2/catch.hpp"
#include "kernels/sample.h"

namespace heddle::kernels {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers published with Random123 (file kat_vectors, philox4x32, 10 rounds).
TEST_CASE("Philox4x32-10 gives the published known answers", "[kernels][unit]") {
  CHECK(Philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  uint32_t ones = 0xffffffff;
  CHECK(Philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("CounterUniform takes the top 23 bits of the first word of Philox", "[kernels][unit]") {
  // 0x6627e8d5 >> 9 = 0x3313f4.
  CHECK(CounterUniform(0, 0, 0) == (static_cast<float>(0x3313f4) + 0.5f) / 8388608.0f);
}

TEST_CASE("CounterUniform is uniform over counters and differs between streams",
          "[kernels][unit]") {
  constexpr int kDraws = 100000;
  constexpr int kBins = 20;
  int bins[kBins] = {};
  int equal = 0;
  for (int i = 0; i < kDraws; ++i) {
    float u = CounterUniform(/*seed=*/42, i, 0);
    REQUIRE(u > 0.0f);
    REQUIRE(u < 1.0f);
    ++bins[static_cast<int>(u * kBins)];
    equal += u == CounterUniform(42, i, 1);
  }
  double chi_square = 0;
  for (int count : bins) {
    double difference = count - kDraws / static_cast<double>(kBins);
    chi_square += difference * difference / (kDraws / static_cast<double>(kBins));
  }
  CHECK(chi_square < 43.8);  // 99.9 % quantile of chi-square with 19 degrees of freedom
  CHECK(equal < 5);
}

}  // namespace
}  // namespace heddle::kernels
