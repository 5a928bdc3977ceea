// Tool calls in the text of models of the Hermes family, and how clients get to see them.
#include "server/openai/tool_calls.h"

#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::test {
namespace {

using server::HermesToolParser;
using server::ToolCall;
using server::ToolFormat;

struct Parsed {
  std::string content;
  std::vector<ToolCall> calls;
};

Parsed Parse(const std::string& text, size_t piece) {
  HermesToolParser parser;
  Parsed parsed;
  for (size_t at = 0; at < text.size(); at += piece) {
    parser.Push(std::string_view(text).substr(at, piece), &parsed.content, &parsed.calls);
  }
  parser.Finish(&parsed.content);
  return parsed;
}

TEST_CASE("Calls and content are the same however the text is cut", "[openai]") {
  const std::string text =
      "Let me look.\n <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Kyoto\", "
      "\"days\": 2}}\n</tool_call>\n<tool_call>{\"name\":\"time\"}</tool_call>\n\nDone <soon>. ";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    Parsed parsed = Parse(text, piece);
    INFO("pieces of " << piece);
    CHECK(parsed.content == "Let me look.Done <soon>. ");
    REQUIRE(parsed.calls.size() == 2);
    CHECK(parsed.calls[0].name == "weather");
    CHECK(parsed.calls[0].arguments == R"({"city":"Kyoto","days":2})");
    CHECK(parsed.calls[1].name == "time");
    CHECK(parsed.calls[1].arguments == "{}");
  }
}

TEST_CASE("What only looks like a call is content; half a call is nothing", "[openai]") {
  for (size_t piece : {1, 3, 1000}) {
    CHECK(Parse("a <tool_cal", piece).content == "a <tool_cal");
    CHECK(Parse("x<tool_call>not json</tool_call>y", piece).content ==
          "x<tool_call>not json</tool_call>y");
    CHECK(Parse("x <tool_call>{\"name\": \"f\", \"argum", piece).content == "x");
    CHECK(Parse("x <tool_call>{\"name\": \"f\", \"argum", piece).calls.empty());
    CHECK(Parse("<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", piece).calls.empty());
  }
}

TEST_CASE("Arguments may be an object, or an object in a string", "[openai]") {
  Parsed parsed = Parse(R"(<tool_call>{"arguments":"{\"a\": 1}","name":"f"}</tool_call>)", 5);
  REQUIRE(parsed.calls.size() == 1);
  CHECK(parsed.calls[0].arguments == R"({"a": 1})");
}

TEST_CASE("Text that never ends its call does not cost more and more", "[openai]") {
  HermesToolParser parser;
  std::string content;
  std::vector<ToolCall> calls;
  parser.Push("<tool_call>", &content, &calls);
  for (int i = 0; i < 300000; ++i) parser.Push("x", &content, &calls);
  parser.Finish(&content);
  CHECK(content.size() == 300000 + std::string("<tool_call>").size());
  CHECK(calls.empty());
}

TEST_CASE("The template tells the format", "[openai]") {
  CHECK(server::ToolFormatOf("... <tool_call>\n{\"name\": ...") == ToolFormat::kHermes);
  CHECK(server::ToolFormatOf("<tool_call>\n<function=f>") == ToolFormat::kNone);
  CHECK(server::ToolFormatOf("{{ messages }}") == ToolFormat::kNone);
}

}  // namespace
}  // namespace heddle::test
