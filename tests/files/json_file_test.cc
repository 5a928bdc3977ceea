#include "engine/files/json_file.h"

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace heddle::engine {
namespace {

constexpr double kLargest = 1.7976931348623157e308;

TEST_CASE("Infinity, which Python writes, is the largest number", "[files][unit]") {
  auto parsed = ParseJson(
      R"({"limit": [0.0, Infinity], "low": -Infinity, "name": "to \"Infinity\" and",
          "Infinity": 1})",
      "config.json");
  INFO(parsed.status().ToString());
  REQUIRE(parsed.ok());
  CHECK(parsed->at("limit").at(1) == kLargest);
  CHECK(parsed->at("low") == -kLargest);
  CHECK(parsed->at("name") == "to \"Infinity\" and");
  CHECK(parsed->at("Infinity") == 1);
}

TEST_CASE("Texts that hold the word, and are no JSON, are refused", "[files][unit]") {
  for (const char* text : {"Infinit", "[Infinity", R"({"a": InfinityInfinity})", R"("Infinity)",
                           R"({Infinity: 1})", R"(["\)", R"([Infinity, "\)"}) {
    INFO(text);
    test::CheckError(ParseJson(text, "config.json").status(), absl::StatusCode::kInvalidArgument,
                     {"config.json", "not valid JSON"});
  }
}

}  // namespace
}  // namespace heddle::engine
