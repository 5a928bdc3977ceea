#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/schema/json_schema.h"

namespace heddle::engine::grammar {
namespace {

using Catch::Contains;

std::string ErrorOf(const std::string& schema) {
  const absl::StatusOr<Grammar> grammar = ParseJsonSchema(schema, {});
  return grammar.ok() ? "" : std::string(grammar.status().message());
}

// Source: the vocabularies of the draft's meta-schema (core, applicator, unevaluated, validation,
// meta-data, format, content); with those of older drafts that are no more.
TEST_CASE("Every keyword of draft 2020-12 is honoured, a note, or refused by name and place",
          "[grammar][unit]") {
  const char* const known[] = {R"("$id":"http://a/b")",
                               R"("$schema":"https://json-schema.org/draft/2020-12/schema")",
                               R"("$ref":"#/$defs/d")",
                               R"("$anchor":"x")",
                               R"("$vocabulary":{})",
                               R"("$comment":"x")",
                               R"("$defs":{"e":{}})",
                               R"("prefixItems":[{}])",
                               R"("items":{})",
                               R"("additionalProperties":false)",
                               R"("properties":{"a":{}})",
                               R"("patternProperties":{"^a":{}})",
                               R"("propertyNames":{"pattern":"^a$"})",
                               R"("allOf":[{}])",
                               R"("anyOf":[{}])",
                               R"("oneOf":[{}])",
                               R"("unevaluatedItems":false)",
                               R"("unevaluatedProperties":false)",
                               R"("type":"integer")",
                               R"("const":1)",
                               R"("enum":[1])",
                               R"("multipleOf":2)",
                               R"("maximum":1)",
                               R"("exclusiveMaximum":1)",
                               R"("minimum":1)",
                               R"("exclusiveMinimum":1)",
                               R"("maxLength":1)",
                               R"("minLength":1)",
                               R"("pattern":"a")",
                               R"("maxItems":1)",
                               R"("minItems":1)",
                               R"("uniqueItems":false)",
                               R"("maxProperties":1)",
                               R"("minProperties":0)",
                               R"("required":["a"])",
                               R"("title":"x")",
                               R"("description":"x")",
                               R"("default":1)",
                               R"("deprecated":true)",
                               R"("readOnly":true)",
                               R"("writeOnly":true)",
                               R"("examples":[1])",
                               R"("format":"date")",
                               R"("contentEncoding":"base64")",
                               R"("contentMediaType":"application/json")",
                               R"("contentSchema":{})",
                               R"("definitions":{"e":{}})"};
  const auto at_place = [](const std::string& member) {
    return R"({"$defs":{"d":{}},"type":"object","properties":{"p":{"items":{)" + member +
           R"(},"type":"array"}}})";
  };
  for (const char* member : known) CHECK(ErrorOf(at_place(member)) == "");
  const char* const refused[] = {R"("$dynamicRef":"#x")",
                                 R"("$dynamicAnchor":"x")",
                                 R"("contains":{})",
                                 R"("minContains":1)",
                                 R"("maxContains":1)",
                                 R"("dependentSchemas":{})",
                                 R"("if":{})",
                                 R"("then":{})",
                                 R"("else":{})",
                                 R"("not":{})",
                                 R"("dependentRequired":{})",
                                 R"("uniqueItems":true)",
                                 R"("dependencies":{})",
                                 R"("$recursiveRef":"#")",
                                 R"("$recursiveAnchor":true)",
                                 R"("nullable":true)"};
  for (const std::string member : refused) {
    CHECK_THAT(ErrorOf(at_place(member)), Contains(member.substr(0, member.find(':'))) &&
                                              Contains("\"#/properties/p/items\"") &&
                                              Contains("supported"));
  }
}

}  // namespace
}  // namespace heddle::engine::grammar
