#include "engine/grammar/json_schema.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema_document.h"
#include "engine/grammar/schema_writer.h"

namespace heddle::engine::grammar {
namespace {

// Depth of brackets outside strings; what is no JSON at all is left to the parser.
int32_t DepthOf(std::string_view text) {
  int32_t depth = 0;
  int32_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  }
  return deepest;
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
  if (DepthOf(text) > kMaxSchemaDepth) {
    return absl::InvalidArgumentError(
        base::StrCat("the JSON schema is nested more than ", kMaxSchemaDepth, " levels deep"));
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
