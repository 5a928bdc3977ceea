// JSON Schema (draft 2020-12, and what older drafts spell differently) to a grammar whose texts are
// JSON that is valid by the schema. Not every valid text is derived: objects have the listed
// properties in the listed order, and others only where the schema speaks of them
// (additionalProperties, patternProperties) or lists none; numbers have a bounded number of digits.
//
// A keyword that cannot be honoured is an error that names it and its place; none is ignored but
// those that only describe (title, default, examples...), and those that begin with "x-".
// Sources: json-schema.org/draft/2020-12/json-schema-core and -validation.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine::grammar {

enum class JsonWhitespace : uint8_t {
  kFlexible,  // a space, or a line break and an indent, after { [ , : and before } ]
  kNone,
};

struct JsonOptions {
  JsonWhitespace whitespace = JsonWhitespace::kFlexible;
  // A regular expression for the white space instead, if not empty; it should match "".
  std::string whitespace_pattern;
};

// Bounds on schemas from clients. Nesting is that of the document.
inline constexpr int32_t kMaxSchemaDepth = 64;
inline constexpr int32_t kMaxSubschemas = 20'000;  // rules, conjunctions included

// Adds the rules of a schema to `grammar`; the rule returned derives its values.
// INVALID_ARGUMENT: not a schema, or a keyword that is not supported, as in
//   at "#/properties/tags": "contains" is not supported
// RESOURCE_EXHAUSTED: too large when compiled.
absl::StatusOr<RuleId> AddJsonSchema(const nlohmann::ordered_json& schema,
                                     const JsonOptions& options, Grammar* grammar);

// A grammar of its own; the text must be one JSON value.
absl::StatusOr<Grammar> ParseJsonSchema(std::string_view schema, const JsonOptions& options);

// Any JSON object.
absl::StatusOr<Grammar> JsonObjectGrammar(const JsonOptions& options);

}  // namespace heddle::engine::grammar
