#include "engine/grammar/schema/json_schema.h"

#include <utility>

#include "base/json_shape.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema/schema_document.h"
#include "engine/grammar/schema/schema_writer.h"

namespace heddle::engine::grammar {
absl::StatusOr<RuleId> AddJsonSchema(const Json& schema, const JsonOptions& options,
                                     Grammar* grammar, Budget* budget,
                                     std::vector<std::string>* dropped) {
  std::vector<std::string> ignored;
  if (dropped == nullptr) dropped = &ignored;
  SchemaDocument document(&schema, budget, options.drops_unsupported ? dropped : nullptr);
  return SchemaWriter(&document, options, grammar).Run();
}

absl::StatusOr<RuleId> AddJsonSchema(std::string_view text, const JsonOptions& options,
                                     Grammar* grammar, Budget* budget,
                                     std::vector<std::string>* dropped) {
  HEDDLE_RETURN_IF_ERROR(Spend(budget, static_cast<int64_t>(text.size())));
  if (text.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError(base::StrCat(
        "the JSON schema has ", text.size(), " bytes; at most ", kMaxSchemaBytes, " are allowed"));
  }
  switch (base::FindExcess(text, kMaxSchemaDepth, kMaxSchemaMembers).excess) {
    case base::JsonShape::Excess::kDepth:
      return absl::InvalidArgumentError(
          base::StrCat("the JSON schema is nested more than ", kMaxSchemaDepth, " levels deep"));
    case base::JsonShape::Excess::kMembers:
      return absl::InvalidArgumentError(base::StrCat("an object of the JSON schema has more than ",
                                                     kMaxSchemaMembers, " members"));
    case base::JsonShape::Excess::kNone:
      break;
  }
  const Json schema = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) {
    return absl::InvalidArgumentError("the JSON schema is not valid JSON");
  }
  return AddJsonSchema(schema, options, grammar, budget, dropped);
}

absl::StatusOr<Grammar> ParseJsonSchema(std::string_view text, const JsonOptions& options,
                                        Budget* budget, std::vector<std::string>* dropped) {
  Grammar grammar;
  HEDDLE_ASSIGN_OR_RETURN(grammar.root, AddJsonSchema(text, options, &grammar, budget, dropped));
  return grammar;
}

}  // namespace heddle::engine::grammar
