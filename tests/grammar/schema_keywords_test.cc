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
TEST_CASE("Every keyword of draft 2020-12 and of older drafts is honoured or an annotation",
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
                               R"("definitions":{"e":{}})",
                               R"("$dynamicRef":"#d")",
                               R"("$dynamicAnchor":"x")",
                               R"("contains":{})",
                               R"("contains":{},"minContains":2)",
                               R"("contains":{"type":"null"},"maxContains":1)",
                               R"("dependentSchemas":{"a":{}})",
                               R"("if":{"type":"null"},"then":{"const":null})",
                               R"("if":{"type":"null"},"else":{"type":"string"})",
                               R"("not":{"type":"null"})",
                               R"("dependentRequired":{"a":["b"]})",
                               R"("uniqueItems":true)",
                               R"("dependencies":{"a":["b"],"c":{}})",
                               R"("$recursiveRef":"#")",
                               R"("$recursiveAnchor":true)",
                               R"("type":"string","nullable":true)",
                               R"("format":"isbn")",
                               R"("markdownDescription":"x")",
                               R"("x-order":1)",
                               R"("minlength":3)"};
  const auto at_place = [](const std::string& member) {
    return R"({"$defs":{"d":{"$anchor":"d"}},"type":"object","properties":{"p":{"items":{)" +
           member + R"(},"type":"array"}}})";
  };
  for (const char* member : known) CHECK(ErrorOf(at_place(member)) == "");
}

}  // namespace
}  // namespace heddle::engine::grammar
