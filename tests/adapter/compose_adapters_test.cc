// Sets of adapters: the image of a set adds what its members add, times their scales.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/adapter/compose_adapters.h"
#include "kernels/kv_element.h"
#include "tests/support/adapter_images.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using test::PlainFactors;

constexpr int64_t kPageBytes = 1024;
constexpr int32_t kInputs = 24, kOutputs = 40;

PlainFactors RandomFactors(AdapterSite site, int32_t rank, float scale, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  PlainFactors factors{.layer = 1, .site = site, .part = 0, .rank = rank, .scale = scale};
  factors.a.resize(static_cast<size_t>(rank) * kInputs);
  factors.b.resize(static_cast<size_t>(rank) * kOutputs);
  for (float& value : factors.a) value = normal(*random);
  for (float& value : factors.b) value = normal(*random);
  return factors;
}

// scale * B A, by the plain factors.
std::vector<double> ChangeOf(const PlainFactors& factors, double weight) {
  std::vector<double> change(size_t{kOutputs} * kInputs);
  for (int32_t j = 0; j < factors.rank; ++j) {
    for (int32_t r = 0; r < kOutputs; ++r) {
      for (int32_t c = 0; c < kInputs; ++c) {
        change[static_cast<size_t>(r * kInputs + c)] +=
            weight * factors.scale * factors.b[static_cast<size_t>(j * kOutputs + r)] *
            factors.a[static_cast<size_t>(j * kInputs + c)];
      }
    }
  }
  return change;
}

float Element(const AdapterImage& image, std::span<const ImagePlace> places, int32_t block_rows,
              int64_t row, int64_t cols, int64_t col) {
  const ImagePlace& place = places[static_cast<size_t>(row / block_rows)];
  return kernels::LoadElement(image.dtype, image.page(place.page).data() + place.offset,
                              row % block_rows * cols + col);
}

// The same, by the image.
std::vector<double> ChangeOf(const AdapterImage& image, AdapterSite site) {
  std::vector<double> change(size_t{kOutputs} * kInputs);
  for (const ImageFactors& f : image.factors) {
    if (f.site != site) continue;
    for (int64_t j = 0; j < f.rank; ++j) {
      for (int32_t r = 0; r < kOutputs; ++r) {
        for (int32_t c = 0; c < kInputs; ++c) {
          change[static_cast<size_t>(r * kInputs + c)] +=
              double{f.scale} * Element(image, f.b, f.block_rows, j, kOutputs, r) *
              Element(image, f.a, f.block_rows, j, kInputs, c);
        }
      }
    }
  }
  return change;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

std::shared_ptr<AdapterImage> ImageOf(std::vector<PlainFactors> factors, uint64_t seed,
                                      DType dtype = DType::kF32) {
  return test::MakeAdapterImage(factors, dtype, kPageBytes, /*block_rows=*/3, seed);
}

TEST_CASE("A set adds what its members add, times their scales", "[adapter][unit]") {
  std::mt19937_64 random(1);
  const PlainFactors first = RandomFactors(AdapterSite::kOut, 4, 0.5f, &random);
  const PlainFactors second = RandomFactors(AdapterSite::kOut, 7, 2.0f, &random);
  const PlainFactors only_second = RandomFactors(AdapterSite::kDown, 2, 1.5f, &random);
  const auto a = ImageOf({first}, 1);
  const auto b = ImageOf({second, only_second}, 2);
  const AdapterShare members[] = {{"a", a.get(), 0.25f}, {"b", b.get(), -1.5f}};
  const auto set = ComposeAdapters(members, 16, 0);
  INFO(set.status().ToString());
  REQUIRE(set.ok());
  CHECK((*set)->max_rank == 11);
  std::vector<double> expected = ChangeOf(first, 0.25);
  const std::vector<double> of_second = ChangeOf(second, -1.5);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += of_second[i];
  CHECK(LargestDifference(ChangeOf(**set, AdapterSite::kOut), expected) < 1e-4);
  CHECK(LargestDifference(ChangeOf(**set, AdapterSite::kDown), ChangeOf(only_second, -1.5)) < 1e-4);

  SECTION("the same set has the same bytes") {
    const auto again = ComposeAdapters(members, 16, 0);
    REQUIRE(again.ok());
    REQUIRE((*again)->bytes() == (*set)->bytes());
    CHECK(std::memcmp((*again)->content.get(), (*set)->content.get(),
                      static_cast<size_t>((*set)->bytes())) == 0);
  }
  SECTION("the ranks may not exceed the limit") {
    const auto refused = ComposeAdapters(members, 10, 0);
    CHECK(refused.status().message() ==
          "the ranks of \"a\", \"b\" add up to 11 in one matrix; --max-lora-rank is 10");
  }
  SECTION("memory is bounded") {
    CHECK(absl::IsResourceExhausted(ComposeAdapters(members, 16, kPageBytes).status()));
  }
}

TEST_CASE("A set of one member has its factors unchanged, in any type", "[adapter][unit]") {
  std::mt19937_64 random(2);
  const DType dtype = GENERATE(DType::kF32, DType::kF16, DType::kBF16);
  const auto image = ImageOf({RandomFactors(AdapterSite::kOut, 5, 0.3f, &random)}, 3, dtype);
  const AdapterShare members[] = {{"a", image.get(), 1.0f}, {"none", image.get(), 0.0f}};
  const auto set = ComposeAdapters(members, 8, 0);
  REQUIRE(set.ok());
  CHECK(ChangeOf(**set, AdapterSite::kOut) == ChangeOf(*image, AdapterSite::kOut));
}

TEST_CASE("Sets without members, or with scales that are no numbers, are refused",
          "[adapter][unit]") {
  std::mt19937_64 random(3);
  const auto image = ImageOf({RandomFactors(AdapterSite::kOut, 5, 1.0f, &random)}, 4, DType::kF16);
  const AdapterShare none[] = {{"a", image.get(), 0.0f}};
  CHECK(ComposeAdapters(none, 8, 0).status().message() ==
        "a set of adapters has none with a scale");
  CHECK(!ComposeAdapters({}, 8, 0).ok());
  const AdapterShare infinite[] = {{"a", image.get(), INFINITY}};
  CHECK(ComposeAdapters(infinite, 8, 0).status().message() ==
        "the scale of adapter \"a\" is not finite");
}

TEST_CASE("Whole matrices and factors of the same matrix cannot be combined", "[adapter][unit]") {
  std::mt19937_64 random(4);
  PlainFactors factors = RandomFactors(AdapterSite::kHead, 5, 1.0f, &random);
  const auto product = ImageOf({factors}, 5);
  factors = RandomFactors(AdapterSite::kHead, kInputs, 1.0f, &random);
  const auto whole = ImageOf({factors}, 6);
  whole->factors[0].a.clear();
  const AdapterShare members[] = {{"p", product.get(), 1.0f}, {"w", whole.get(), 1.0f}};
  CHECK(ComposeAdapters(members, 8, 0).status().message() ==
        "adapter \"w\" replaces a whole matrix (modules_to_save) for which adapter \"p\" has "
        "factors; these two cannot be combined");
  // Their ranks do not count, and they add up.
  const AdapterShare twice[] = {{"w", whole.get(), 0.5f}, {"w2", whole.get(), 0.25f}};
  const auto set = ComposeAdapters(twice, 8, 0);
  REQUIRE(set.ok());
  const ImageFactors& made = (*set)->factors[0];
  CHECK(made.a.empty());
  CHECK(made.rank == kInputs);
  for (const int64_t at : {0, 7, 23}) {
    const float before = Element(*whole, whole->factors[0].b, 3, at, kOutputs, 5);
    CHECK(made.scale * Element(**set, made.b, made.block_rows, at, kOutputs, 5) ==
          Approx(0.75f * before));
  }
}

}  // namespace
}  // namespace heddle::engine
