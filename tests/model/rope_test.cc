#include <cmath>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "engine/model/model_spec.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

// transformers rounds to F32 after each operation, in the same order; its vectorised power and the
// blends may each be off by a unit in the last place.
constexpr double kTolerance = 4.0 * 0x1p-24;

void CheckFrequencies(const std::vector<float>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("frequency " << i << ": " << found[i] << ", expected " << expected[i]);
    CHECK(std::fabs(found[i] - expected[i]) <= kTolerance * expected[i]);
  }
}

TEST_CASE("Inverse frequencies of published configs equal those of transformers",
          "[model][golden]") {
  json golden = test::LoadGoldenJson("rope.json");
  for (const json& entry : golden["cases"]) {
    INFO(entry["name"].get<std::string>());
    auto description = DescribeConfig(entry["config"], json::object(), "config.json");
    INFO(description.status().ToString());
    REQUIRE(description.ok());
    const RopeSpec& rope = description->spec.layers[0].attention.rope;
    CheckFrequencies(InverseFrequencies(rope), entry["inv_freq"].get<std::vector<double>>());
    CHECK(rope.attention_factor == Approx(entry["attention_factor"].get<double>()).epsilon(1e-6));
  }
}

TEST_CASE("LongRoPE divides each frequency by its own factor, as transformers does",
          "[model][golden]") {
  json golden = test::LoadGoldenJson("rope.json")["longrope"];
  RopeSpec rope;
  rope.theta = golden["theta"];
  rope.rotary_dim = golden["rotary_dim"];
  rope.scaling = RopeScaling::kLongRope;
  rope.divisors = golden["divisors"].get<std::vector<float>>();
  CheckFrequencies(InverseFrequencies(rope), golden["inv_freq"].get<std::vector<double>>());
}

TEST_CASE("GGUF's table of divisors gives Llama 3's scaled frequencies", "[model][unit]") {
  test::Golden golden = test::LoadGolden("llama3_rope");
  auto description = DescribeConfig(*golden.config, json::object(), "config.json");
  REQUIRE(description.ok());
  RopeSpec scaled = description->spec.layers[0].attention.rope;
  RopeSpec divided;
  divided.theta = scaled.theta;
  divided.rotary_dim = scaled.rotary_dim;
  divided.divisors = golden.rope_divisors;  // by the converter's formula, in double
  std::vector<float> expected = InverseFrequencies(scaled);
  CheckFrequencies(InverseFrequencies(divided),
                   std::vector<double>(expected.begin(), expected.end()));
}

}  // namespace
}  // namespace heddle::engine
