#include "server/openai/constraint.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar_compiler.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_error.h"
#include "server/openai/fields.h"
#include "server/openai/request_parts.h"

namespace heddle::server {
namespace {

using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::JsonWhitespace;

constexpr std::string_view kAnyObjectSchema = R"({"type":"object"})";

// A constraint and the field that it came from.
struct Demand {
  std::string param;
  Constraint constraint;
};

absl::StatusOr<std::string> StringOf(const Json& value, std::string_view param) {
  if (value.is_string()) return value.get<std::string>();
  return FieldError(param, base::StrCat("'", param, "' must be a string, found ", JsonKind(value)),
                    "invalid_type");
}

// A schema as an object, or as the text of one.
absl::StatusOr<Constraint> SchemaConstraint(const Json& value, std::string_view param) {
  Constraint constraint;
  if (value.is_string()) {
    constraint.text = value.get<std::string>();
  } else if (value.is_object() || value.is_boolean()) {
    constraint.text = value.dump();
  } else {
    return FieldError(param,
                      base::StrCat("'", param, "' must be a JSON schema, found ", JsonKind(value)),
                      "invalid_type");
  }
  return constraint;
}

absl::StatusOr<Constraint> ChoiceConstraint(const Json& value, std::string_view param) {
  Constraint constraint{.kind = ConstraintKind::kChoice};
  if (!value.is_array() || value.empty()) {
    return FieldError(param, base::StrCat("'", param, "' must be a list of strings"),
                      "invalid_type");
  }
  for (const Json& choice : value) {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, StringOf(choice, param));
    constraint.choices.push_back(std::move(text));
  }
  return constraint;
}

absl::StatusOr<Constraint> TextConstraint(ConstraintKind kind, const Json& value,
                                          std::string_view param) {
  Constraint constraint{.kind = kind};
  HEDDLE_ASSIGN_OR_RETURN(constraint.text, StringOf(value, param));
  return constraint;
}

absl::StatusOr<std::optional<Demand>> FromResponseFormat(const Json& format) {
  const Json* type = Find(format, "type");
  const std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  if (name == "text") return std::nullopt;
  Demand demand{"response_format", {}};
  if (name == "json_object") {
    demand.constraint.text = kAnyObjectSchema;
    return demand;
  }
  if (name != "json_schema") {
    return FieldError("response_format.type",
                      base::StrCat("'response_format.type' must be 'text', 'json_object' or "
                                   "'json_schema', found ",
                                   base::Quote(type == nullptr ? "null" : type->dump())));
  }
  demand.param = "response_format.json_schema";
  const Json* holder = Find(format, "json_schema");
  if (holder == nullptr || !holder->is_object()) {
    return FieldError(demand.param, "'response_format.json_schema' must be an object");
  }
  demand.param += ".schema";
  const Json* schema = Find(*holder, "schema");
  if (schema == nullptr) {
    return FieldError(demand.param, "'response_format.json_schema.schema' is missing");
  }
  HEDDLE_ASSIGN_OR_RETURN(demand.constraint, SchemaConstraint(*schema, demand.param));
  return demand;
}

enum class Form : uint8_t { kSchema, kAnyObject, kRegex, kChoice, kGbnf };

struct FieldForm {
  std::string_view name;
  Form form;
};
constexpr FieldForm kOwnFields[] = {
    {"guided_json", Form::kSchema},   {"guided_regex", Form::kRegex},
    {"guided_choice", Form::kChoice}, {"guided_grammar", Form::kGbnf},
    {"json_schema", Form::kSchema},   {"grammar", Form::kGbnf}};
constexpr FieldForm kStructuredFields[] = {{"json", Form::kSchema},
                                           {"json_object", Form::kAnyObject},
                                           {"regex", Form::kRegex},
                                           {"choice", Form::kChoice},
                                           {"grammar", Form::kGbnf}};

absl::StatusOr<Constraint> ConstraintOf(Form form, const Json& value, std::string_view param) {
  switch (form) {
    case Form::kSchema:
      return SchemaConstraint(value, param);
    case Form::kRegex:
      return TextConstraint(ConstraintKind::kRegex, value, param);
    case Form::kChoice:
      return ChoiceConstraint(value, param);
    case Form::kGbnf:
      return TextConstraint(ConstraintKind::kGbnf, value, param);
    case Form::kAnyObject:
      break;
  }
  return Constraint{.text = std::string(kAnyObjectSchema)};
}

template <size_t n>
absl::Status AddDemands(const Json& object, const FieldForm (&fields)[n], const std::string& prefix,
                        std::vector<Demand>* demands) {
  for (const FieldForm& field : fields) {
    const Json* value = Find(object, field.name);
    if (value == nullptr || (field.form == Form::kAnyObject && *value == false)) continue;
    const std::string param = base::StrCat(prefix, field.name);
    HEDDLE_ASSIGN_OR_RETURN(Constraint constraint, ConstraintOf(field.form, *value, param));
    demands->push_back({param, std::move(constraint)});
  }
  return absl::OkStatus();
}

absl::Status ReadStructuredOutputs(const Json& object, std::vector<Demand>* demands) {
  const size_t before = demands->size();
  HEDDLE_RETURN_IF_ERROR(AddDemands(object, kStructuredFields, "structured_outputs.", demands));
  if (Find(object, "structural_tag") != nullptr) {
    return FieldError("structured_outputs.structural_tag",
                      "'structured_outputs.structural_tag' is not supported",
                      "unsupported_parameter");
  }
  if (demands->size() == before) return absl::OkStatus();
  engine::grammar::JsonOptions& json = demands->back().constraint.json;
  const Json* none = Find(object, "disable_any_whitespace");
  if (none != nullptr && *none == true) json.whitespace = JsonWhitespace::kNone;
  if (const Json* pattern = Find(object, "whitespace_pattern")) {
    HEDDLE_ASSIGN_OR_RETURN(json.whitespace_pattern,
                            StringOf(*pattern, "structured_outputs.whitespace_pattern"));
  }
  return absl::OkStatus();
}

// References of a schema that has become a part of another one, at `place`.
void MoveReferences(const std::string& place, Json* schema) {
  if (!schema->is_structured()) return;
  for (auto it = schema->begin(); it != schema->end(); ++it) {
    const bool is_reference = schema->is_object() && it.key() == "$ref" && it->is_string();
    if (!is_reference) {
      MoveReferences(place, &*it);
      continue;
    }
    const auto reference = it->get<std::string>();
    if (reference == "#" || reference.rfind("#/", 0) == 0) *it = place + reference.substr(1);
  }
}

// The JSON of one call, {"name": ..., "arguments": ...}, of any tool on offer or of the named one.
absl::StatusOr<Demand> ForcedCall(const Json& body) {
  const Json& choice = *Find(body, "tool_choice");
  std::string only;
  if (choice.is_object()) only = Find(*Find(choice, "function"), "name")->get<std::string>();
  Json calls = Json::array();
  for (const Json& tool : *Find(body, "tools")) {
    const Json& function = *Find(tool, "function");
    const std::string name = *Find(function, "name");
    if (!only.empty() && name != only) continue;
    const Json* given = Find(function, "parameters");
    if (given != nullptr && !given->is_object()) {
      return FieldError("tools", base::StrCat("the parameters of tool ", base::Quote(name),
                                              " must be a JSON schema, found ", JsonKind(*given)));
    }
    Json parameters = given != nullptr ? *given : Json::object();
    if (!parameters.contains("type")) parameters["type"] = "object";  // arguments have names
    MoveReferences(base::StrCat("#/anyOf/", calls.size(), "/properties/arguments"), &parameters);
    Json call = {{"type", "object"}, {"required", {"name", "arguments"}}};
    call["properties"]["name"]["const"] = name;
    call["properties"]["arguments"] = std::move(parameters);
    calls.push_back(std::move(call));
  }
  Demand demand{"tools", {}};
  Json schema = Json::object();
  schema["anyOf"] = std::move(calls);
  demand.constraint.text = schema.dump();
  demand.constraint.before = "<tool_call>\n";
  demand.constraint.after = "\n</tool_call>";
  return demand;
}

absl::StatusOr<std::vector<Demand>> ReadDemands(const Json& body) {
  std::vector<Demand> demands;
  if (const Json* format = Find(body, "response_format")) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<Demand> demand, FromResponseFormat(*format));
    if (demand) demands.push_back(*std::move(demand));
  }
  HEDDLE_RETURN_IF_ERROR(AddDemands(body, kOwnFields, "", &demands));
  if (const Json* object = Find(body, "structured_outputs")) {
    HEDDLE_RETURN_IF_ERROR(ReadStructuredOutputs(*object, &demands));
  }
  return demands;
}

}  // namespace

bool ForcesCall(const Json& body) {
  const Json* choice = Find(body, "tool_choice");
  return choice != nullptr && (choice->is_object() || *choice == "required");
}

absl::Status CheckToolChoice(const Json& body, const TextCodec& codec) {
  const Json* choice = Find(body, "tool_choice");
  if (choice == nullptr || *choice == "none" || *choice == "auto") return absl::OkStatus();
  const Json* function = choice->is_object() ? Find(*choice, "function") : nullptr;
  const Json* name =
      function != nullptr && function->is_object() ? Find(*function, "name") : nullptr;
  if (*choice != "required" && (name == nullptr || !name->is_string())) {
    return FieldError("tool_choice",
                      base::StrCat("'tool_choice' must be 'auto', 'none', 'required' or "
                                   "{\"type\":\"function\",\"function\":{\"name\":...}}, found ",
                                   base::Quote(choice->dump())));
  }
  if (!OffersTools(body)) return FieldError("tool_choice", "'tool_choice' needs 'tools'");
  if (name != nullptr && !ReadToolSet(body).Has(name->get_ref<const std::string&>())) {
    return FieldError(
        "tool_choice.function.name",
        base::StrCat("'tool_choice' names ", name->dump(), ", which is none of 'tools'"));
  }
  const ToolSyntax* syntax = codec.syntax().tools;
  if (syntax != nullptr && syntax->name == "hermes") return absl::OkStatus();
  return FieldError(
      "tool_choice",
      base::StrCat("calls cannot be forced in the format of this model's calls (",
                   syntax == nullptr ? "none" : syntax->name, "); use 'tool_choice': 'auto'"),
      "unsupported_parameter");
}

absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> ReadConstraint(
    const Json& body, const TextCodec& codec, const ApiRequest& request) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<Demand> demands, ReadDemands(body));
  if (request.endpoint == Endpoint::kChat && ForcesCall(body)) {
    HEDDLE_ASSIGN_OR_RETURN(Demand demand, ForcedCall(body));
    demands.push_back(std::move(demand));
  }
  if (demands.empty()) return nullptr;
  if (demands.size() > 1) {
    return FieldError(demands[1].param,
                      base::StrCat("'", demands[0].param, "' and '", demands[1].param,
                                   "' both say what the answer must be"));
  }
  Demand& demand = demands.front();
  if (const ReasoningSyntax* reasoning = request.syntax.reasoning) {
    demand.constraint.reasoning_close = reasoning->close[0];
    if (!request.begins_in_reasoning) demand.constraint.reasoning_open = reasoning->open[0];
  }
  absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> grammar =
      codec.grammars().Compile(demand.constraint);
  if (!grammar.ok()) {
    return FieldError(demand.param,
                      base::StrCat("'", demand.param, "': ", MessageOf(grammar.status())));
  }
  return grammar;
}

}  // namespace heddle::server
