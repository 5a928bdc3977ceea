#include "engine/grammar/json_schema.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema_document.h"
#include "engine/grammar/schema_writer.h"

namespace heddle::engine::grammar {
namespace {

struct Shape {
  int32_t depth = 0;    // of brackets
  int32_t members = 0;  // of the object that has most
};

// Of a text's brackets and commas outside strings; what is no JSON at all is left to the parser.
Shape ShapeOf(std::string_view text) {
  Shape shape;
  std::vector<int32_t> commas;  // of each open object, or negative in an array
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') {
      commas.push_back(c == '{' ? 0 : std::numeric_limits<int32_t>::min());
      shape.depth = std::max(shape.depth, static_cast<int32_t>(commas.size()));
    } else if (commas.empty()) {
      continue;
    } else if (c == '}' || c == ']') {
      commas.pop_back();
    } else if (c == ',') {
      shape.members = std::max(shape.members, ++commas.back() + 1);
    }
  }
  return shape;
}

}  // namespace

absl::StatusOr<RuleId> AddJsonSchema(const Json& schema, const JsonOptions& options,
                                     Grammar* grammar) {
  SchemaDocument document(&schema);
  return SchemaWriter(&document, options, grammar).Run();
}

absl::StatusOr<RuleId> AddJsonSchema(std::string_view text, const JsonOptions& options,
                                     Grammar* grammar) {
  if (text.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(base::StrCat(
        "the JSON schema has ", text.size(), " bytes; at most ", kMaxSourceBytes, " are allowed"));
  }
  const Shape shape = ShapeOf(text);
  if (shape.depth > kMaxSchemaDepth) {
    return absl::InvalidArgumentError(
        base::StrCat("the JSON schema is nested more than ", kMaxSchemaDepth, " levels deep"));
  }
  if (shape.members > kMaxSchemaMembers) {
    return absl::InvalidArgumentError(base::StrCat("an object of the JSON schema has ",
                                                   shape.members, " members; at most ",
                                                   kMaxSchemaMembers, " are allowed"));
  }
  const Json schema = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) {
    return absl::InvalidArgumentError("the JSON schema is not valid JSON");
  }
  return AddJsonSchema(schema, options, grammar);
}

absl::StatusOr<Grammar> ParseJsonSchema(std::string_view text, const JsonOptions& options) {
  Grammar grammar;
  HEDDLE_ASSIGN_OR_RETURN(grammar.root, AddJsonSchema(text, options, &grammar));
  return grammar;
}

}  // namespace heddle::engine::grammar
