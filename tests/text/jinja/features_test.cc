// One template per feature of the language against Jinja2's own result, text or error:
// features.json, written by tests/golden/make_template_goldens.py.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "catch2/catch.hpp"
#include "engine/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

using Json = nlohmann::ordered_json;

Json LoadFeatures() {
  std::ifstream in(test::SourceDir() / "tests" / "text" / "jinja" / "features.json");
  REQUIRE(in.good());
  return Json::parse(in);
}

// "TypeError: message" without its type. Python numbers columns and characters in a few messages;
// ours end before that.
std::string MessageOf(const std::string& error) {
  std::string message = error.substr(error.find(": ") + 2);
  if (size_t at = message.find(" (0x"); at != std::string::npos) message.resize(at);
  return message;
}

absl::StatusOr<std::string> ParseAndRender(const std::string& source, const Json& context) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(context);
}

TEST_CASE("Every feature of the language gives the text that Jinja2 gives", "[text][unit]") {
  Json features = LoadFeatures();
  int checked = 0;
  for (const Json& feature : features["cases"]) {
    if (!feature.contains("expected")) continue;
    std::string source = feature["template"].get<std::string>();
    INFO(feature["feature"].get<std::string>() << ": " << source);
    absl::StatusOr<std::string> text = ParseAndRender(source, features["context"]);
    INFO(text.status().ToString());
    CHECK(text.ok());
    if (text.ok()) CHECK(*text == feature["expected"].get<std::string>());
    ++checked;
  }
  CHECK(checked > 130);
}

TEST_CASE("What Jinja2 refuses is refused in the same words, with the line", "[text][unit]") {
  Json features = LoadFeatures();
  int checked = 0;
  for (const Json& feature : features["cases"]) {
    if (!feature.contains("error")) continue;
    std::string source = feature["template"].get<std::string>();
    INFO(feature["feature"].get<std::string>() << ": " << source);
    absl::StatusOr<std::string> text = ParseAndRender(source, features["context"]);
    ++checked;
    CHECK_FALSE(text.ok());
    if (text.ok()) continue;
    CHECK(absl::IsInvalidArgument(text.status()));
    std::string message(text.status().message());
    INFO(message);
    CHECK(message.starts_with("line 1: "));
    if (feature["feature"] == "syntax errors") continue;  // our own words
    std::string expected = MessageOf(feature["error"].get<std::string>());
    INFO(expected);
    CHECK(message == "line 1: " + expected);
  }
  CHECK(checked > 100);
}

}  // namespace
}  // namespace heddle::engine::text
