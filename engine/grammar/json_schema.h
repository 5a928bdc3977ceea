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

// How the members of the outermost object are written where that is not JSON: some models write the
// arguments of a call as <parameter=city>Paris</parameter>. Only listed members are.
struct MemberForm {
  std::string key_open;      // before a key, which stands as it is
  std::string key_close;     // between key and value
  std::string value_close;   // behind a value; not within a raw one
  std::string separator;     // between members
  bool raw_strings = false;  // values whose schema is {"type":"string",...} come without quotes

  // Whether there is one; otherwise the object is JSON.
  bool is_set() const { return !key_close.empty(); }
};

struct JsonOptions {
  MemberForm form;
  JsonWhitespace whitespace = JsonWhitespace::kFlexible;
  // A regular expression for the white space instead, if not empty; it should match "".
  std::string whitespace_pattern;
};

// Bounds on schemas from clients. Nesting is that of the document.
inline constexpr int32_t kMaxSchemaDepth = 64;
// Of one object: each new member is compared with all before it.
inline constexpr int32_t kMaxSchemaMembers = 1024;
inline constexpr int32_t kMaxSubschemas = 20'000;  // rules, conjunctions included

// Adds the rules of a schema to `grammar`; the rule returned derives its values.
// INVALID_ARGUMENT: not a schema, or a keyword that is not supported, as in
//   at "#/properties/tags": "contains" is not supported
// RESOURCE_EXHAUSTED: too large when compiled.
absl::StatusOr<RuleId> AddJsonSchema(const nlohmann::ordered_json& schema,
                                     const JsonOptions& options, Grammar* grammar);

// The same for a text, which must be one JSON value.
absl::StatusOr<RuleId> AddJsonSchema(std::string_view schema, const JsonOptions& options,
                                     Grammar* grammar);
// A grammar of its own.
absl::StatusOr<Grammar> ParseJsonSchema(std::string_view schema, const JsonOptions& options);

}  // namespace heddle::engine::grammar
