// Compiles a JSON Schema (draft 2020-12, and older drafts' spellings) to a grammar of valid JSON.
// Not every valid text is derived: objects have the listed properties in the listed order, and
// other properties only if the schema mentions them (additionalProperties, patternProperties) or
// lists none; numbers have a bounded number of digits.
//
// A keyword that cannot be honoured is an error that names it and its place, or is left out if the
// options say so. Keywords and formats that are not known are annotations.
// Sources: json-schema.org/draft/2020-12/json-schema-core and -validation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine::grammar {

enum class JsonWhitespace : uint8_t {
  kFlexible,  // a space, or a line break and an indent, after { [ , : and before } ]
  kNone,
};

// The notation of the outermost object's members if it is not JSON: some models write the arguments
// of a call as <parameter=city>Paris</parameter>. Only listed members are written.
struct MemberForm {
  std::string key_open;      // before a key, which is written without escapes
  std::string key_close;     // between key and value
  std::string value_close;   // after a value, except a raw one
  std::string separator;     // between members
  bool raw_strings = false;  // values whose schema is {"type":"string",...} come without quotes

  // Whether a form is set; otherwise the object is JSON.
  bool is_set() const { return !key_close.empty(); }
};

struct JsonOptions {
  MemberForm form;
  JsonWhitespace whitespace = JsonWhitespace::kFlexible;
  // A regular expression of the white space, if not empty; it should match "".
  std::string whitespace_pattern;
  // Keywords that are not supported are left out; otherwise the schema is refused.
  bool drops_unsupported = false;
};

// Bounds on schemas from clients. Nesting is counted in the document.
inline constexpr size_t kMaxSchemaBytes = size_t{4} << 20;
inline constexpr int32_t kMaxSchemaDepth = 64;
// Members of one object: each new member is compared with all earlier ones.
inline constexpr int32_t kMaxSchemaMembers = 4096;
inline constexpr int32_t kMaxSubschemas = 20'000;  // rules, conjunctions included

// Adds the rules of a schema to `grammar`; returns the rule of its values. INVALID_ARGUMENT: not a
// schema, or an unsupported keyword, as in
//   at "#/properties/tags": "maxContains" is not supported
// RESOURCE_EXHAUSTED: too large when compiled. If the budget is over, its status() says so,
// whatever is returned. `dropped` gets the messages about what was left out.
absl::StatusOr<RuleId> AddJsonSchema(const nlohmann::ordered_json& schema,
                                     const JsonOptions& options, Grammar* grammar,
                                     Budget* budget = nullptr,
                                     std::vector<std::string>* dropped = nullptr);

// The same for a text that must be one JSON value.
absl::StatusOr<RuleId> AddJsonSchema(std::string_view schema, const JsonOptions& options,
                                     Grammar* grammar, Budget* budget = nullptr,
                                     std::vector<std::string>* dropped = nullptr);
// A separate grammar of the schema.
absl::StatusOr<Grammar> ParseJsonSchema(std::string_view schema, const JsonOptions& options,
                                        Budget* budget = nullptr,
                                        std::vector<std::string>* dropped = nullptr);

}  // namespace heddle::engine::grammar
