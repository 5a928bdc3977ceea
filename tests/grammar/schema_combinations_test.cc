// Combinations of schemas: not, if, dependent schemas, overlapping alternatives, references to
// themselves, sets and lengths. Expectations are the specification's; what heddle never writes
// although it is valid is not asserted.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/schema/json_schema.h"
#include "tests/grammar/testing.h"

namespace heddle {
namespace {

using test::Matches;

struct Case {
  std::string schema;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

void Check(const Case& c) {
  INFO(c.schema);
  const auto grammar = engine::grammar::ParseJsonSchema(c.schema, {});
  INFO(grammar.status().message());
  REQUIRE(grammar.ok());
  const auto compiled = test::CompileOrDie(*grammar);
  for (const std::string& text : c.valid) {
    INFO(text);
    CHECK(Matches(compiled, text));
  }
  for (const std::string& text : c.invalid) {
    INFO(text);
    CHECK_FALSE(Matches(compiled, text));
  }
}

TEST_CASE("What must not be valid is not written", "[grammar][unit]") {
  Check(
      {R"({"type":"string","not":{"enum":["no","never"]}})", {R"("yes")", R"("n")"}, {R"("no")"}});
  Check({R"({"type":"integer","not":{"const":5}})", {"4", "55"}, {"5"}});
  Check({R"({"type":"number","not":{"const":5}})", {"4", "5.5"}, {"5", "5.0", "5.00"}});
  Check({R"({"type":["string","null"],"not":{"type":"null"}})", {R"("a")"}, {"null"}});
  Check({R"({"type":"string","not":{"pattern":"^x"}})", {R"("ax")"}, {R"("xa")"}});
  Check({R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
             "not":{"required":["a","b"]}})",
         {"{}", R"({"a":1})", R"({"b":1})"},
         {R"({"a":1,"b":1})"}});
  Check({R"({"type":"integer","not":{"anyOf":[{"minimum":10},{"maximum":3}]}})",
         {"4", "9"},
         {"3", "10"}});
}

TEST_CASE("if, then and else hold by the value", "[grammar][unit]") {
  Check({R"({"type":"object","properties":{"kind":{"enum":["a","b"]},"x":{"type":"integer"}},
             "required":["kind"],"if":{"properties":{"kind":{"const":"a"}}},
             "then":{"required":["x"]},"else":{"properties":{"x":false}}})",
         {R"({"kind":"a","x":1})", R"({"kind":"b"})"},
         {R"({"kind":"a"})", R"({"kind":"b","x":1})"}});
}

TEST_CASE("What depends on a property holds where it is written", "[grammar][unit]") {
  Check({R"({"properties":{"card":{"type":"integer"},"address":{"type":"string"}},
             "dependentRequired":{"card":["address"]}})",
         {"{}", R"({"address":"a"})", R"({"card":1,"address":"a"})"},
         {R"({"card":1})"}});
  Check({R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
             "dependentSchemas":{"a":{"properties":{"b":{"minimum":5}}}}})",
         {R"({"b":1})", R"({"a":1,"b":5})"},
         {R"({"a":1,"b":4})"}});
}

TEST_CASE("Exactly one alternative of oneOf holds", "[grammar][unit]") {
  Check({R"({"oneOf":[{"type":"integer"},{"minimum":3,"type":"number"}]})", {"2"}, {"3", "4"}});
  Check({R"({"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":3}]})",
         {R"("ab")", R"("abcd")"},
         {R"("abc")"}});
}

// Objects with the properties a to f; each branch has six of these bounds.
std::string BranchOfSix(const std::string& bounds) {
  std::string properties;
  for (const char name : std::string("abcdef")) {
    if (!properties.empty()) properties += ',';
    properties += std::string("\"") + name + "\":{" + bounds + ",\"title\":\"A property\"}";
  }
  return R"({"type":"object","properties":{)" + properties +
         R"(},"required":["a","b","c","d","e","f"],"additionalProperties":false})";
}

std::string ObjectOfSix(const std::string& first, const std::string& rest) {
  std::string text = R"({"a":)" + first;
  for (const char name : std::string("bcdef")) {
    text += std::string(",\"") + name + "\":" + rest;
  }
  return text + "}";
}

TEST_CASE("Alternatives of oneOf that lie in each other leave what is only in one",
          "[grammar][unit]") {
  std::string branches[3];
  for (int i = 1; i <= 4; ++i) {
    const std::string comma = i == 1 ? "" : ",";
    const std::string bound = std::to_string(10 * i);
    branches[0] += comma + BranchOfSix(R"("type":"integer","minimum":0,"maximum":)" + bound);
    branches[1] += comma + BranchOfSix(R"("type":"string","maxLength":)" + std::to_string(i));
    branches[2] += comma + BranchOfSix(R"("type":"number","exclusiveMinimum":-)" + bound);
  }
  Check({R"({"oneOf":[)" + branches[0] + "]}",
         {ObjectOfSix("35", "5"), ObjectOfSix("40", "40")},
         {ObjectOfSix("5", "5"), ObjectOfSix("30", "5"), ObjectOfSix("41", "41")}});
  Check({R"({"oneOf":[)" + branches[1] + "]}",
         {ObjectOfSix(R"("abcd")", R"("a")")},
         {ObjectOfSix(R"("abc")", R"("a")"), ObjectOfSix(R"("abcde")", R"("a")")}});
  Check({R"({"oneOf":[)" + branches[2] + "]}",
         {ObjectOfSix("-35", "5"), ObjectOfSix("-30", "5.5")},
         {ObjectOfSix("-40", "5"), ObjectOfSix("-29.5", "5")}});
}

TEST_CASE("A reference to itself adds nothing to alternatives", "[grammar][unit]") {
  Check({R"({"anyOf":[{"$ref":"#"},{"type":"integer"}]})", {"1"}, {"null", R"("a")", "{}", "1.5"}});
  Check({R"({"$ref":"#/$defs/a","$defs":{"a":{"oneOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
             "b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"boolean"}]}}})",
         {"true"},
         {"1", "{}"}});
}

TEST_CASE("Items of a set and keys of an object differ", "[grammar][unit]") {
  Check({R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
         {"[]", R"(["a"])", R"(["a","b"])", R"(["a","ab","abc"])"},
         {R"(["a","a"])", R"(["a","b","a"])", R"(["a","\u0061"])"}});
  Check({R"({"type":"array","items":{"type":"number"},"uniqueItems":true})",
         {"[1,2,12]", "[1, 1.5]"},
         {"[1,1]", "[1,1.0]", "[10,1e1]"}});
  Check({R"({"type":"array","items":{"type":"array","items":{"type":"integer"}},
             "uniqueItems":true})",
         {"[[1],[1,1],[]]"},
         {"[[1],[1]]", "[[], [ ]]"}});
  Check({R"({"type":"object"})",
         {R"({"a":1,"b":{"a":1}})", R"({"a":[{"a":1},{"a":1}]})"},
         {R"({"a":1,"a":2})", R"({"b":{"a":1,"a":1}})"}});
  Check({R"({"enum":[1]})", {"1"}, {}});
}

TEST_CASE("A mask leaves out what would repeat a value, and never leaves nothing",
          "[grammar][unit]") {
  const auto grammar = engine::grammar::ParseJsonSchema(
      R"({"type":"array","items":{"anyOf":[{"type":"boolean"},{"type":"integer"}]},
          "uniqueItems":true,"minItems":4})",
      {});
  REQUIRE(grammar.ok());
  engine::grammar::Matcher matcher(test::CompileOrDie(*grammar), /*forces=*/false);
  REQUIRE(matcher.AcceptText("[true,0"));
  REQUIRE(matcher.AcceptText(","));
  const auto mask = matcher.Mask();
  REQUIRE(mask.ok());
  CHECK_FALSE(engine::grammar::IsAllowed(**mask, test::ByteToken('t')));
  CHECK_FALSE(engine::grammar::IsAllowed(**mask, test::ByteToken('0')));
  CHECK(engine::grammar::IsAllowed(**mask, test::ByteToken('f')));
  CHECK(engine::grammar::IsAllowed(**mask, test::ByteToken('1')));
}

TEST_CASE("Masks leave out every token that would repeat a key or item, in any notation",
          "[grammar][unit]") {
  const auto vocabulary = test::MakeVocabulary({"ab\"",
                                                "ab\":",
                                                "b\":",
                                                "\"ab\"",
                                                " \"ab\"",
                                                "\n\"a",
                                                "\\u0061b\"",
                                                "\\u0061",
                                                "0061b\"",
                                                "\\/\"",
                                                "/\"",
                                                "x/\":",
                                                "\\\"\"",
                                                "\\\"",
                                                "\\n\"",
                                                "\\u000a\":",
                                                "\":1,\"ab\":",
                                                "z\":1,\"z\":",
                                                ",\"ab\"",
                                                ",\"",
                                                ", \"",
                                                "1,\"ab\":2",
                                                "\",\"ab\"",
                                                "],[",
                                                "[1,1",
                                                "{\"a\":1,\"a\"",
                                                "\\ude00\"",
                                                "\\ud83d\\ude00\"",
                                                "\xF0\x9F\x98\x80\"",
                                                "\x98\x80\"",
                                                "1.0,",
                                                "e0,",
                                                "\"}",
                                                "a,\""});
  struct Text {
    const char* schema;
    std::vector<std::string> beginnings;
  };
  const std::string keys = R"({"ab":1,"x/":2,"\"":3,"a\u000a":4,"\ud83d\ude00":[{"a":1}],"":5,)";
  const std::vector<Text> texts = {
      {R"({"type":"object"})",
       {"{", keys, keys + "\"", keys + "\"a", keys + "\"\\u0061", keys + "\"x", keys + "\"\\",
        keys + "\"\\u00", keys + "\"\\ud83d", keys + "\"\xF0\x9F", keys + "\"a\\n", keys + "\"q\"",
        keys + "\"q\":", keys + "\"q\":\"", keys + "\"q\":[", keys + "\"q\":{\"ab\":1,\"a",
        keys + "\"q\":{", keys + "\"q\":1", keys + "\n "}},
      {R"({"type":"array","uniqueItems":true})",
       {"[", "[\"ab\",", "[\"ab\",\"a", "[\"x\\/\",\"x", "[1,", "[1,1", "[[1],", "[[1],[",
        "[{\"a\":1},{\"a\":1", "[{\"ab\":\"ab\"},{\"ab\":\"a", "[\"ab\",[\"ab\""}}};
  for (const Text& text : texts) {
    const auto grammar = engine::grammar::ParseJsonSchema(text.schema, {});
    REQUIRE(grammar.ok());
    const auto compiled = test::CompileOrDie(*grammar, vocabulary);
    for (const std::string& beginning : text.beginnings) {
      INFO(beginning);
      engine::grammar::Matcher matcher(compiled, /*forces=*/false);
      REQUIRE(matcher.AcceptText(beginning));
      test::CheckMask(matcher);
    }
  }
}

TEST_CASE("Properties that nothing mentions are closed by unevaluatedProperties",
          "[grammar][unit]") {
  Check({R"({"allOf":[{"properties":{"a":{"type":"integer"}}}],"unevaluatedProperties":false})",
         {R"({"a":1})"},
         {R"({"a":1,"b":1})"}});
  Check({R"({"type":"object","allOf":[{"properties":{"a":{"type":"integer"}}},
             {"unevaluatedProperties":false}]})",
         {"{}"},
         {R"({"a":1})"}});
}

TEST_CASE("Items that must be contained are counted", "[grammar][unit]") {
  Check({R"({"type":"array","items":{"type":["integer","null"]},"contains":{"type":"null"}})",
         {"[null]", "[1,null]", "[null,1,null]"},
         {"[]", "[1]"}});
  Check({R"({"type":"array","items":{"type":["integer","null"]},"contains":{"type":"null"},
             "minContains":0,"maxContains":1})",
         {"[]", "[1,null,2]"},
         {"[null,null]", "[null,1,null]"}});
}

TEST_CASE("Bounds on the length of formats and patterns hold", "[grammar][unit]") {
  Check({R"({"type":"string","format":"uri","maxLength":30,"minLength":1})",
         {R"("http://example.com/a")"},
         {R"("http://example.com/abcdefghijklmn")"}});
  Check({R"({"type":"string","format":"uri","minLength":1,"maxLength":2083})",
         {R"("https://a.example.com:80/b?c=d#e")"},
         {R"("")"}});
  Check({R"({"type":"string","pattern":"^[ab]+$","minLength":2,"maxLength":3})",
         {R"("ab")", R"("bbb")"},
         {R"("a")", R"("abab")"}});
}

TEST_CASE("Look-ahead of what follows restricts it", "[grammar][unit]") {
  // Pydantic's pattern of decimals.
  Check({R"j({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})j",
         {R"("1.5")", R"("-0")", R"("+.5")"},
         {R"("")", R"("+.")", R"("1.5.")"}});
  Check(
      {R"j({"type":"string","pattern":"^(?=.*[0-9])[a-z0-9]{3}$"})j", {R"("ab1")"}, {R"("abc")"}});
  // zod's of durations (ISO 8601).
  Check({R"j({"type":"string","pattern":"^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?)j"
         R"j((T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"})j",
         {R"("P3W")", R"("P1Y2M")", R"("PT1.5S")", R"("P1DT12H")"},
         {R"("P")", R"("PT")", R"("P1DT")", R"("P1Y3W")", R"("P1H")"}});
}

TEST_CASE("OpenAPI's nullable and older drafts' keywords mean what they meant", "[grammar][unit]") {
  Check({R"({"type":"string","nullable":true})", {"null", R"("a")"}, {"1"}});
  Check({R"({"type":"integer","minimum":1,"exclusiveMinimum":true})", {"2"}, {"1"}});
}

TEST_CASE("Documents that are bundled are found by their identifiers", "[grammar][unit]") {
  Check({R"({"$id":"http://a.example/root.json","$ref":"other.json#/$defs/x","$defs":{"o":{
             "$id":"other.json","$defs":{"x":{"$ref":"#here"},"y":{"$anchor":"here","type":"null"}}}}})",
         {"null"},
         {"1"}});
}

}  // namespace
}  // namespace heddle
