// Real chat templates against the text, or the refusal, that Jinja2 gives as transformers sets it
// up: shared/data/chat_templates.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::tm FifteenthOfJanuary2026() {  // when the vectors were made
  std::tm time{};
  time.tm_year = 126;
  time.tm_mday = 15;
  time.tm_hour = 12;
  time.tm_wday = 4;
  time.tm_yday = 14;
  return time;
}

// Everything of a case that is not its name or its outcome is a variable of the template.
Json ContextOf(const Json& vector) {
  Json context = vector;
  for (const char* key : {"case", "expected", "expected_error"}) context.erase(key);
  return context;
}

void CheckCase(const ChatTemplate& chat_template, const Json& vector) {
  absl::StatusOr<std::string> text = chat_template.Render(ContextOf(vector));
  if (vector.contains("expected")) {
    INFO(text.status().ToString());
    REQUIRE(text.ok());
    CHECK(*text == vector["expected"].get<std::string>());
    return;
  }
  // "TypeError: message": ours has the message behind "line N: ".
  std::string expected = vector["expected_error"].get<std::string>();
  expected.erase(0, expected.find(": ") + 2);
  REQUIRE_FALSE(text.ok());
  std::string message(text.status().message());
  INFO(message);
  CHECK(message.starts_with("line "));
  CHECK(message.ends_with(": " + expected));
}

TEST_CASE("Every real template renders its conversations as Jinja2 does", "[text][golden]") {
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(test::SharedDataOrSkip("chat_templates"))) {
    if (entry.path().extension() != ".jinja") continue;
    absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed =
        ChatTemplate::Parse(ReadFile(entry.path()), {.limits = {}, .now = FifteenthOfJanuary2026});
    INFO(entry.path().filename().string() << ": " << parsed.status().ToString());
    REQUIRE(parsed.ok());
    for (const Json& vector : Json::parse(ReadFile(entry.path().string() + ".cases.json"))) {
      INFO("case " << vector["case"].get<std::string>());
      CheckCase(**parsed, vector);
      ++cases;
    }
  }
  CHECK(cases >= 44 * 9);
}

}  // namespace
}  // namespace heddle::engine::text
