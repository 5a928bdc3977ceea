#include "server/openai/constraint.h"

#include <algorithm>
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
#include "server/openai/show_json.h"
#include "server/openai/tool_grammar.h"

namespace heddle::server {
namespace {

using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::GrammarOf;
using engine::grammar::JsonWhitespace;

constexpr std::string_view kAnyObjectSchema = R"({"type":"object"})";

// A call more than these ends the answer: what is forced must come to an end.
constexpr int32_t kMaxForcedCalls = 16;

// A constraint and the field that it came from.
struct Demand {
  std::string param;
  Constraint constraint;
};

absl::Status NameField(const absl::Status& status, const Demand& demand) {
  if (status.ok()) return status;
  return FieldError(demand.param, base::StrCat("'", demand.param, "': ", MessageOf(status)));
}

bool IsStrict(const Json& function) {
  const Json* strict = Find(function, "strict");
  return strict != nullptr && *strict == true;
}

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
                                   type == nullptr ? "nothing" : ShowJson(*type)));
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

// What an answer must be is never passed over: a name that is not known is an error here, unless it
// turns off what there is not.
absl::Status CheckStructuredMembers(const Json& object) {
  for (auto it = object.begin(); it != object.end(); ++it) {
    const std::string_view name = it.key();
    const bool is_form = std::any_of(std::begin(kStructuredFields), std::end(kStructuredFields),
                                     [name](const FieldForm& form) { return form.name == name; });
    const bool is_flag = name == "disable_any_whitespace" || name == "json_object";
    const bool is_value = name == "whitespace_pattern" || (is_form && !is_flag);
    if (is_value || it->is_null() || *it == false) continue;
    const std::string param = base::StrCat("structured_outputs.", name.substr(0, 64));
    if (!is_flag) {
      return FieldError(param, base::StrCat("'", param, "' is not supported"),
                        "unsupported_parameter");
    }
    if (it->is_boolean()) continue;
    return FieldError(param, base::StrCat("'", param, "' must be a boolean, found ", JsonKind(*it)),
                      "invalid_type");
  }
  return absl::OkStatus();
}

absl::Status ReadStructuredOutputs(const Json& object, std::vector<Demand>* demands) {
  const size_t before = demands->size();
  HEDDLE_RETURN_IF_ERROR(CheckStructuredMembers(object));
  HEDDLE_RETURN_IF_ERROR(AddDemands(object, kStructuredFields, "structured_outputs.", demands));
  if (demands->size() == before) {
    return FieldError("structured_outputs",
                      "'structured_outputs' must hold one of json, json_object, regex, choice and "
                      "grammar");
  }
  engine::grammar::JsonOptions& json = demands->back().constraint.json;
  if (GetBool(object, "disable_any_whitespace", false)) json.whitespace = JsonWhitespace::kNone;
  if (const Json* pattern = Find(object, "whitespace_pattern")) {
    HEDDLE_ASSIGN_OR_RETURN(json.whitespace_pattern,
                            StringOf(*pattern, "structured_outputs.whitespace_pattern"));
  }
  return absl::OkStatus();
}

// The tools that may be called (only `name`, unless it is empty), with the schemas of arguments.
// `all_strict`: of every tool; otherwise those that are not strict take any object.
absl::StatusOr<std::vector<CallableTool>> Callable(const Json& body, std::string_view name,
                                                   bool all_strict) {
  std::vector<CallableTool> tools;
  for (const Json& tool : *Find(body, "tools")) {
    const Json& function = *Find(tool, "function");
    CallableTool callable{*Find(function, "name"), std::string(kAnyObjectSchema)};
    if (!name.empty() && callable.name != name) continue;
    const Json* given = Find(function, "parameters");
    if (given != nullptr && !given->is_object()) {
      return FieldError("tools", base::StrCat("the parameters of tool ", base::Quote(callable.name),
                                              " must be a JSON schema, found ", JsonKind(*given)));
    }
    if (given != nullptr && (all_strict || IsStrict(function))) {
      Json parameters = *given;
      // Arguments have names.
      if (!parameters.contains("type")) parameters["type"] = "object";
      callable.schema = parameters.dump();
    }
    tools.push_back(std::move(callable));
  }
  return tools;
}

std::vector<std::string> EndMarks(const TextCodec& codec) {
  std::vector<std::string> marks;
  for (TokenId end : codec.end_tokens()) marks.push_back(codec.TokenBytes(end));
  return marks;
}

// Calls only, where one is forced: exactly one where it is named, as OpenAI has it.
absl::StatusOr<Demand> ForcedCalls(const Json& body, const TextCodec& codec, bool parallel) {
  const Json& choice = *Find(body, "tool_choice");
  std::string name;
  if (choice.is_object()) name = *Find(*Find(choice, "function"), "name");
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<CallableTool> tools,
                          Callable(body, name, /*all_strict=*/true));
  const int32_t max_calls = parallel && name.empty() ? kMaxForcedCalls : 1;
  return Demand{"tools", CallsConstraint(*codec.syntax().tools, tools, max_calls, EndMarks(codec))};
}

// The model may call, and answer otherwise as `format` demands, if it does.
absl::StatusOr<std::optional<Demand>> FreeCalls(const Json& body, const TextCodec& codec,
                                                bool parallel, std::optional<Demand> format) {
  const ToolSyntax* syntax = codec.syntax().tools;
  const bool is_strict =
      std::any_of(Find(body, "tools")->begin(), Find(body, "tools")->end(),
                  [](const Json& tool) { return IsStrict(*Find(tool, "function")); });
  if (!is_strict && !format) return std::nullopt;
  if (syntax == nullptr || !HasCallGrammar(*syntax)) {
    if (!is_strict) return format;
    return FieldError("tools",
                      base::StrCat("'strict' tools need a model whose calls are written in a known "
                                   "format; this one's are not (",
                                   syntax == nullptr ? "none" : syntax->name, ")"),
                      "unsupported_parameter");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<CallableTool> tools,
                          Callable(body, "", /*all_strict=*/false));
  const int32_t max_calls = parallel ? kMaxForcedCalls : 1;
  Demand demand{"tools", {}};
  if (format) {
    demand.constraint = Constraint::OneOf(
        {format->constraint, CallsConstraint(*syntax, tools, max_calls, EndMarks(codec))});
  } else {
    demand.constraint = TextWithCalls(*syntax, tools, max_calls, EndMarks(codec));
  }
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
                                   ShowJson(*choice)));
  }
  if (!OffersTools(body)) return FieldError("tool_choice", "'tool_choice' needs 'tools'");
  if (name != nullptr && !ReadToolSet(body).Has(name->get_ref<const std::string&>())) {
    return FieldError(
        "tool_choice.function.name",
        base::StrCat("'tool_choice' names ", ShowJson(*name), ", which is none of 'tools'"));
  }
  const ToolSyntax* syntax = codec.syntax().tools;
  if (syntax != nullptr && HasCallGrammar(*syntax)) return absl::OkStatus();
  return FieldError(
      "tool_choice",
      base::StrCat("calls cannot be forced in the format of this model's calls (",
                   syntax == nullptr ? "none" : syntax->name, "); use 'tool_choice': 'auto'"),
      "unsupported_parameter");
}

absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> ReadConstraint(
    const Json& body, const RequestContext& context, const ApiRequest& request) {
  const TextCodec& codec = *context.codec;
  HEDDLE_ASSIGN_OR_RETURN(std::vector<Demand> demands, ReadDemands(body));
  const bool offers_tools = request.endpoint == Endpoint::kChat && OffersTools(body);
  const bool is_forced = offers_tools && ForcesCall(body);
  if (is_forced) {
    HEDDLE_ASSIGN_OR_RETURN(Demand demand, ForcedCalls(body, codec, request.parallel_tool_calls));
    demands.push_back(std::move(demand));
  }
  if (demands.size() > 1) {
    return FieldError(demands[1].param,
                      base::StrCat("'", demands[0].param, "' and '", demands[1].param,
                                   "' both say what the answer must be"));
  }
  std::optional<Demand> demand;
  if (!demands.empty()) demand = std::move(demands.front());
  if (demand && !is_forced) {
    demand->constraint = AsContent(request.syntax, std::move(demand->constraint));
  }
  std::optional<Demand> format;  // beside the tools
  if (offers_tools && !is_forced) {
    format = demand;
    HEDDLE_ASSIGN_OR_RETURN(demand,
                            FreeCalls(body, codec, request.parallel_tool_calls, std::move(demand)));
  }
  if (!demand) return nullptr;
  if (const ReasoningSyntax* reasoning = request.syntax.reasoning) {
    demand->constraint =
        BehindReasoning(*reasoning, request.begins_in_reasoning, std::move(demand->constraint));
  }
  if (auto known = codec.grammars().Known(demand->constraint)) return known;
  if (context.quick) return TakesLong();
  // Checked by itself, so that an error names the field that it is in.
  if (format) HEDDLE_RETURN_IF_ERROR(NameField(GrammarOf(format->constraint).status(), *format));
  absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> grammar =
      codec.grammars().Compile(demand->constraint);
  if (!grammar.ok()) return NameField(grammar.status(), *demand);
  return grammar;
}

}  // namespace heddle::server
