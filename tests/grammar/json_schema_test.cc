#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/schema/json_schema.h"
#include "engine/grammar/schema/number_machine.h"
#include "tests/grammar/testing.h"

namespace heddle::engine::grammar {
namespace {

using Catch::Contains;
using test::CompileOrDie;
using test::Matches;

std::shared_ptr<CompiledGrammar> CompileSchema(std::string_view schema,
                                               const JsonOptions& options = {}) {
  const absl::StatusOr<Grammar> grammar = ParseJsonSchema(schema, options);
  INFO(schema << " " << grammar.status().message());
  REQUIRE(grammar.ok());
  return CompileOrDie(*grammar);
}

std::string SchemaError(std::string_view schema) {
  const absl::StatusOr<Grammar> grammar = ParseJsonSchema(schema, {});
  if (!grammar.ok()) return std::string(grammar.status().message());
  const absl::StatusOr<Automaton> automaton = Compile(*grammar);
  return automaton.ok() ? "" : std::string(automaton.status().message());
}

TEST_CASE("Properties come in their order, optional ones may be left out", "[grammar][unit]") {
  auto grammar = CompileSchema(R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"]})");
  CHECK(Matches(grammar, R"({"a":1,"b":true,"c":null})"));
  CHECK(Matches(grammar, R"({"b":false})"));
  CHECK(Matches(grammar, "{\n  \"a\": 1,\n  \"b\": true\n}"));
  CHECK_FALSE(Matches(grammar, R"({"a":1})"));
  CHECK_FALSE(Matches(grammar, R"({"b":true,"a":1})"));
  CHECK_FALSE(Matches(grammar, R"({"b":true,"d":1})"));
  CHECK_FALSE(Matches(grammar, R"({"b":true,})"));
}

TEST_CASE("White space is as asked for", "[grammar][unit]") {
  constexpr std::string_view kSchema = R"({"type":"array","items":{"type":"integer"}})";
  auto none = CompileSchema(kSchema, {.whitespace = JsonWhitespace::kNone});
  CHECK(Matches(none, "[1,2]"));
  CHECK_FALSE(Matches(none, "[1, 2]"));
  JsonOptions two_blanks;
  two_blanks.whitespace_pattern = "( {2})?";
  auto two = CompileSchema(kSchema, two_blanks);
  CHECK(Matches(two, "[1,  2]"));
  CHECK_FALSE(Matches(two, "[1, 2]"));
}

TEST_CASE("Any JSON object, and nothing else", "[grammar][unit]") {
  const auto grammar = CompileSchema(R"({"type":"object"})");
  CHECK(Matches(grammar, R"({"a":[1,-2.5e+10,{"b":{}},[],"\u00e9\ud83d\ude00\"",null,true]})"));
  CHECK(Matches(grammar, "{}"));
  CHECK_FALSE(Matches(grammar, "[]"));
  CHECK_FALSE(Matches(grammar, R"({"a":01})"));
  CHECK_FALSE(Matches(grammar, R"({"a":"\ud83d"})"));  // a lone surrogate
  CHECK_FALSE(Matches(grammar, "{\"a\":\"\n\"}"));
  CHECK_FALSE(Matches(grammar, R"({a:1})"));
}

TEST_CASE("An object of a schema has at most 4096 members", "[grammar][unit]") {
  const auto schema = [](int members) {
    std::string text = R"({"enum":[[1,2],{"a,b":3)";
    for (int i = 1; i < members; ++i) text += ",\"" + std::to_string(i) + "\":[0,0]";
    return text + "}]}";
  };
  CHECK(ParseJsonSchema(schema(4096), {}).ok());
  CHECK_THAT(SchemaError(schema(4097)), Contains("more than 4096 members"));
}

TEST_CASE("Lengths count characters, whatever they are written with", "[grammar][unit]") {
  auto grammar = CompileSchema(R"({"type":"string","minLength":2,"maxLength":3})");
  CHECK(Matches(grammar, "\"ab\""));
  CHECK(Matches(grammar, "\"\xC3\xA9\xF0\x9F\x98\x80\\n\""));
  CHECK(Matches(grammar, R"("\ud83d\ude00\u0041")"));
  CHECK_FALSE(Matches(grammar, "\"a\""));
  CHECK_FALSE(Matches(grammar, R"("abcd")"));
  CHECK_FALSE(Matches(grammar, R"("\ud83d\ude00")"));
}

// Every integer from -1100 to 1100 against the range's own arithmetic.
void CheckIntegers(std::string_view keywords, const std::function<bool(int)>& is_valid) {
  auto grammar = CompileSchema("{\"type\":\"integer\"," + std::string(keywords) + "}");
  for (int i = -1100; i <= 1100; ++i) {
    INFO(keywords << " " << i);
    if (Matches(grammar, std::to_string(i)) != is_valid(i)) CHECK(is_valid(i) == !is_valid(i));
  }
  CHECK_FALSE(Matches(grammar, "007"));
  CHECK_FALSE(Matches(grammar, "1.0"));
}

TEST_CASE("Integer ranges hold exactly the integers within", "[grammar][unit]") {
  CheckIntegers(R"("minimum":-12,"maximum":1034)", [](int i) { return i >= -12 && i <= 1034; });
  CheckIntegers(R"("exclusiveMinimum":9,"maximum":100)", [](int i) { return i > 9 && i <= 100; });
  CheckIntegers(R"("maximum":-7)", [](int i) { return i <= -7; });
  CheckIntegers(R"("minimum":-3.5,"exclusiveMaximum":4.5)",
                [](int i) { return i >= -3 && i <= 4; });
  CheckIntegers(R"("multipleOf":7,"minimum":-100)", [](int i) { return i % 7 == 0 && i >= -100; });
  CheckIntegers(R"("multipleOf":12)", [](int i) { return i % 12 == 0; });
}

TEST_CASE("Decimal ranges hold exactly the decimals within", "[grammar][unit]") {
  auto check = [](const char* keywords, double low, double high, bool open) {
    auto grammar = CompileSchema("{\"type\":\"number\"," + std::string(keywords) + "}");
    for (int i = -4000; i <= 4000; ++i) {
      const double value = i / 1000.0;
      std::string text = std::to_string(value);  // six digits
      if (text == "-0.000000") continue;
      const bool valid = open ? value > low && value < high : value >= low && value <= high;
      INFO(keywords << " " << text);
      if (Matches(grammar, text) != valid) CHECK(Matches(grammar, text) == valid);
    }
  };
  check(R"("minimum":-1.5,"maximum":2.25)", -1.5, 2.25, false);
  check(R"("exclusiveMinimum":0,"exclusiveMaximum":1)", 0, 1, true);
  check(R"("minimum":0.001,"maximum":3)", 0.001, 3, false);
  check(R"("minimum":-3,"maximum":-0.5)", -3, -0.5, false);
}

TEST_CASE("Decimals are read exactly", "[grammar][unit]") {
  const Decimal d = *Decimal::Parse("-12.50e-1");
  CHECK(d.negative);
  CHECK(d.whole == "1");
  CHECK(d.fraction == "25");
  CHECK(Decimal::Parse("1e3")->whole == "1000");
  CHECK(Compare(*Decimal::Parse("-2"), *Decimal::Parse("-10")) > 0);
  CHECK(Compare(*Decimal::Parse("0.10"), *Decimal::Parse("1e-1")) == 0);
  CHECK_FALSE(Decimal::Parse("1e300").ok());
}

TEST_CASE("What cannot be honoured is refused with keyword and place", "[grammar][unit]") {
  CHECK_THAT(SchemaError(R"j({"properties":{"a/b":{"items":{"pattern":"(a)\\1"}}}})j"),
             Contains("\"#/properties/a~1b/items\"") && Contains("\"pattern\""));
  CHECK_THAT(SchemaError(R"({"type":"strin"})"), Contains("\"type\"") && Contains("strin"));
  CHECK_THAT(SchemaError(R"({"extends":{}})"), Contains("\"extends\""));
  CHECK_THAT(SchemaError(R"({"$ref":"other.json"})"), Contains("other.json"));
  CHECK_THAT(SchemaError(R"({"$ref":"#/$defs/none"})"), Contains("none"));
  CHECK_THAT(SchemaError(R"j({"pattern":"(x(?=a))*"})j"),
             Contains("\"pattern\"") && Contains("look-ahead"));
  CHECK_THAT(SchemaError(R"({"multipleOf":0})"), Contains("\"multipleOf\""));
  CHECK_THAT(SchemaError(R"({"minLength":-1})"), Contains("\"minLength\""));
  CHECK_THAT(SchemaError(R"({"contains":{},"minContains":500})"), Contains("\"minContains\""));
  CHECK_THAT(SchemaError(R"({"properties":{"a":3}})"), Contains("\"#/properties/a\""));
  CHECK_THAT(SchemaError("{\"type\":"), Contains("not valid JSON"));
  CHECK_THAT(SchemaError(R"({"$ref":"#"})"), Contains(""));  // ends, whatever it says
  CHECK_THAT(SchemaError(std::string(100, '[') + std::string(100, ']')), Contains("nested"));
}

TEST_CASE("Counts of contains that are too many are told from one that is too large",
          "[grammar][unit]") {
  CHECK_THAT(SchemaError(R"({"type":"array","contains":{"const":1},"maxContains":64})"),
             Contains("\"maxContains\" above 63"));
  CHECK_THAT(SchemaError(R"({"type":"array","allOf":[{"contains":{"const":1},"maxContains":9},
                         {"contains":{"const":2},"maxContains":9}]})"),
             Contains("several \"contains\""));
}

TEST_CASE("A contradiction is told with its place", "[grammar][unit]") {
  CHECK_THAT(SchemaError("false"), Contains("contradict"));
  CHECK_THAT(SchemaError(R"({"not":{}})"), Contains("contradict"));
  CHECK_THAT(SchemaError(R"({"type":"string","minLength":5,"maxLength":4})"),
             Contains("\"minLength\" 5 is above \"maxLength\" 4"));
  CHECK_THAT(SchemaError(R"({"type":"object","required":["a"],"properties":{"a":
                         {"type":"integer","minimum":5,"maximum":1}}})"),
             Contains("at \"#/properties/a\": minimum 5 is above maximum 1"));
  CHECK_THAT(SchemaError(R"({"type":"number","minimum":1,"exclusiveMaximum":1})"),
             Contains("leave no number"));
  CHECK_THAT(SchemaError(R"({"type":"array","items":{"type":"boolean"},"minItems":3,
                         "uniqueItems":true})"),
             Contains("\"minItems\" 3 is above the 2 different values"));
  CHECK_THAT(SchemaError(R"({"enum":["a"],"type":"integer"})"),
             Contains("none of the listed values"));
  CHECK_THAT(SchemaError(R"({"type":"array","contains":{"const":1},"minContains":3,
                         "maxContains":2})"),
             Contains("\"minContains\" 3 is above \"maxContains\" 2"));
}

TEST_CASE("A list with an object that refers to the whole has an end", "[grammar][unit]") {
  auto grammar =
      CompileSchema(R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"}}]})");
  CHECK(Matches(grammar, "[null,[[],null]]"));
  CHECK_FALSE(Matches(grammar, "[1]"));
}

TEST_CASE("Dynamic references mean the anchor of the document's root", "[grammar][unit]") {
  // Section 8.2.3.2 of the core specification: a list whose users say what its items are.
  auto list = CompileSchema(R"({"$id":"https://a.example/strings","$ref":"list","$defs":{
      "foo":{"$dynamicAnchor":"items","type":"string"},
      "list":{"$id":"list","type":"array","items":{"$dynamicRef":"#items"},
              "$defs":{"items":{"$dynamicAnchor":"items"}}}}})");
  CHECK(Matches(list, R"(["a"])"));
  CHECK_FALSE(Matches(list, "[1]"));
  // The root has an anchor of that name which is not dynamic.
  auto plain = CompileSchema(R"({"$id":"https://a.example/strings","$ref":"list","$defs":{
      "foo":{"$anchor":"items","type":"string"},
      "list":{"$id":"list","type":"array","items":{"$dynamicRef":"#items"},
              "$defs":{"items":{"$dynamicAnchor":"items","type":"integer"}}}}})");
  CHECK(Matches(plain, "[1]"));
  auto tree = CompileSchema(R"({"$id":"https://a.example/strict","$recursiveAnchor":true,
      "allOf":[{"$ref":"tree"}],"required":["name"],"$defs":{
      "tree":{"$id":"tree","$recursiveAnchor":true,"type":"object","additionalProperties":false,
              "properties":{"name":{"const":1},"child":{"$recursiveRef":"#"}}}}})");
  CHECK(Matches(tree, R"({"name":1,"child":{"name":1}})"));
  CHECK_FALSE(Matches(tree, R"({"name":1,"child":{}})"));
}

TEST_CASE("Anchors and percent-escapes in references are found", "[grammar][unit]") {
  auto grammar = CompileSchema(R"({"prefixItems":[{"$ref":"#here"},{"$ref":"#/$defs/a%20b~1c"}],
      "minItems":2,"items":false,
      "$defs":{"x":{"$anchor":"here","type":"null"},"a b/c":{"const":1}}})");
  CHECK(Matches(grammar, "[null,1]"));
  CHECK_FALSE(Matches(grammar, "[1,null]"));
}

TEST_CASE("Long bounded strings compile, and say when they are too long", "[grammar][unit]") {
  auto grammar = CompileSchema(R"({"type":"string","maxLength":20000})");
  CHECK(Matches(grammar, "\"" + std::string(20000, 'x') + "\""));
  CHECK_FALSE(Matches(grammar, "\"" + std::string(20001, 'x') + "\""));
}

}  // namespace
}  // namespace heddle::engine::grammar
