#include "server/openai/constraint.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/grammar/lark/lark.h"
#include "nlohmann/json.hpp"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"
#include "server/request/fields.h"
#include "server/request/show_json.h"
#include "server/toolcalls/tool_grammar.h"

namespace heddle::server {
namespace {

using engine::grammar::CompiledGrammar;
using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::GrammarCompiler;
using engine::grammar::JsonWhitespace;

constexpr std::string_view kAnyObjectSchema = R"({"type":"object"})";

// Most calls that an answer with forced calls may have, so that it comes to an end.
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

// Lets keywords that are not supported be left out of the constraint's schemas.
void DropUnsupported(Constraint* constraint) {
  constraint->json.drops_unsupported = true;
  for (Constraint& part : constraint->parts) DropUnsupported(&part);
}

// Whether it is about the constraint, and not the end of the caller's patience.
bool IsRefusal(const absl::Status& status) {
  return !absl::IsCancelled(status) && !absl::IsUnavailable(status);
}

// REQUIRES, as the functions below do: CheckTools has passed `tool`, an entry of "tools".
bool IsStrict(const Json& tool) {
  const Json* function = Find(tool, "function");
  const Json* strict = function == nullptr ? nullptr : Find(*function, "strict");
  return strict != nullptr && *strict == true;
}

absl::StatusOr<std::string> StringOf(const Json& value, std::string_view param) {
  if (const std::string* text = TextOf(&value)) return *text;
  return FieldError(param, base::StrCat("'", param, "' must be a string, found ", JsonKind(value)),
                    "invalid_type");
}

// A schema given as an object or as its text.
absl::StatusOr<Constraint> SchemaConstraint(const Json& value, std::string_view param) {
  Constraint constraint;
  if (const std::string* text = TextOf(&value)) {
    constraint.text = *text;
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

absl::StatusOr<std::optional<Demand>> FromResponseFormat(
    const RequestFields<fields::kResponseFormat>& format) {
  const std::string* type = format.Text<"type">();
  if (type != nullptr && *type == "text") return std::nullopt;
  Demand demand{"response_format", {}};
  const Json* own_schema = format.Value<"schema">();
  if (type != nullptr && *type == "json_object" && own_schema == nullptr) {
    demand.constraint.text = kAnyObjectSchema;
    return demand;
  }
  // The form of llama.cpp and others, beside OpenAI's.
  const bool has_own = own_schema != nullptr && !format.Has<"json_schema">();
  if (type != nullptr && has_own && (*type == "json_object" || *type == "json_schema")) {
    demand.param = "response_format.schema";
    HEDDLE_ASSIGN_OR_RETURN(demand.constraint, SchemaConstraint(*own_schema, demand.param));
    return demand;
  }
  if (type == nullptr || *type != "json_schema") {
    return FieldError("response_format.type",
                      base::StrCat("'response_format.type' must be 'text', 'json_object' or "
                                   "'json_schema', found ",
                                   type == nullptr ? "nothing" : base::Quote(*type)));
  }
  demand.param = "response_format.json_schema";
  const auto holder = format.Object<"json_schema", fields::kJsonSchema>();
  if (!holder.has_value()) {
    return FieldError(demand.param, "'response_format.json_schema' must be an object");
  }
  demand.param += ".schema";
  const Json* schema = holder->Value<"schema">();
  if (schema == nullptr) {
    return FieldError(demand.param, "'response_format.json_schema.schema' is missing");
  }
  HEDDLE_ASSIGN_OR_RETURN(demand.constraint, SchemaConstraint(*schema, demand.param));
  return demand;
}

enum class Form : uint8_t { kSchema, kRegex, kChoice, kGrammar };

absl::StatusOr<Constraint> ConstraintOf(Form form, const Json& value, std::string_view param) {
  switch (form) {
    case Form::kSchema:
      return SchemaConstraint(value, param);
    case Form::kRegex:
      return TextConstraint(ConstraintKind::kRegex, value, param);
    case Form::kChoice:
      return ChoiceConstraint(value, param);
    case Form::kGrammar: {
      HEDDLE_ASSIGN_OR_RETURN(Constraint grammar,
                              TextConstraint(ConstraintKind::kGbnf, value, param));
      if (engine::grammar::IsLark(grammar.text)) grammar.kind = ConstraintKind::kLark;
      return grammar;
    }
  }
  return absl::InternalError("a form without a constraint");
}

absl::Status AddDemand(const Json* value, Form form, std::string param,
                       std::vector<Demand>* demands) {
  if (value == nullptr) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(Constraint constraint, ConstraintOf(form, *value, param));
  demands->push_back({std::move(param), std::move(constraint)});
  return absl::OkStatus();
}

// A demand on the answer is never ignored: an unknown name is an error here, unless it turns off
// something that does not exist.
absl::Status CheckStructuredMembers(const Json& object) {
  for (auto it = object.begin(); it != object.end(); ++it) {
    const std::string_view name = it.key();
    if (!FindField(fields::kStructuredOutputs, name).empty() || it->is_null() || *it == false) {
      continue;
    }
    const std::string param = base::StrCat("structured_outputs.", name.substr(0, 64));
    return FieldError(param, base::StrCat("'", param, "' is not supported"),
                      "unsupported_parameter");
  }
  return absl::OkStatus();
}

absl::Status ReadStructuredOutputs(const RequestFields<fields::kStructuredOutputs>& object,
                                   std::vector<Demand>* demands) {
  static constexpr const char* kName = "structured_outputs.";
  const size_t before = demands->size();
  const auto add = [demands](const Json* value, Form form, const char* name) {
    return AddDemand(value, form, base::StrCat(kName, name), demands);
  };
  HEDDLE_RETURN_IF_ERROR(add(object.Value<"json">(), Form::kSchema, "json"));
  if (object.Bool<"json_object">(false)) {
    demands->push_back(
        {base::StrCat(kName, "json_object"), Constraint{.text = std::string(kAnyObjectSchema)}});
  }
  HEDDLE_RETURN_IF_ERROR(add(object.Value<"regex">(), Form::kRegex, "regex"));
  HEDDLE_RETURN_IF_ERROR(add(object.Value<"choice">(), Form::kChoice, "choice"));
  HEDDLE_RETURN_IF_ERROR(add(object.Value<"grammar">(), Form::kGrammar, "grammar"));
  if (demands->size() == before) {
    return FieldError("structured_outputs",
                      "'structured_outputs' must hold one of json, json_object, regex, choice and "
                      "grammar");
  }
  engine::grammar::JsonOptions& json = demands->back().constraint.json;
  if (object.Bool<"disable_any_whitespace">(false)) json.whitespace = JsonWhitespace::kNone;
  if (const std::string* pattern = object.Text<"whitespace_pattern">()) {
    json.whitespace_pattern = *pattern;
  }
  return absl::OkStatus();
}

// The grammar of a custom tool; nullptr if it has none.
const TextGrammar* TextGrammarOf(std::string_view function, const RequestContext& context) {
  if (context.text_grammars == nullptr) return nullptr;
  for (const TextGrammar& grammar : *context.text_grammars) {
    if (grammar.function == function) return &grammar;
  }
  return nullptr;
}

// The arguments of a custom tool with a grammar: response_tools.h.
Json SchemaOf(const TextGrammar& grammar) {
  Json input = {{"type", "string"}};
  if (grammar.is_regex) {
    input["pattern"] = base::StrCat("^(?:", grammar.definition, ")$");
  } else {
    input["x-lark"] = grammar.definition;
  }
  return {{"type", "object"},
          {"properties", {{"input", std::move(input)}}},
          {"required", Json::array({"input"})},
          {"additionalProperties", false}};
}

// The tools that may be called (only `name`, unless it is empty), with the schemas of their
// arguments. `all_strict`: for every tool; otherwise tools that are not strict take any object.
absl::StatusOr<std::vector<CallableTool>> Callable(const ToolFields& body, std::string_view name,
                                                   bool all_strict, const RequestContext& context) {
  std::vector<CallableTool> tools;
  for (const Json& tool : *body.Value<"tools">()) {
    const Json* function = Find(tool, "function");
    if (function == nullptr) continue;
    CallableTool callable{TextOr(*function, "name", ""), std::string(kAnyObjectSchema)};
    if (!name.empty() && callable.name != name) continue;
    const Json* given = Find(*function, "parameters");
    if (given != nullptr && !given->is_object()) {
      return FieldError("tools", base::StrCat("the parameters of tool ", base::Quote(callable.name),
                                              " must be a JSON schema, found ", JsonKind(*given)));
    }
    if (given != nullptr && (all_strict || IsStrict(tool))) {
      Json parameters = *given;
      // Arguments are named, so they are an object.
      if (!parameters.contains("type")) parameters["type"] = "object";
      callable.schema = parameters.dump();
      // As with OpenAI, only strict tools are promised all that their schemas say.
      callable.is_strict = IsStrict(tool);
    }
    if (const TextGrammar* grammar = TextGrammarOf(callable.name, context)) {
      callable.schema = SchemaOf(*grammar).dump();
      callable.is_strict = true;
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

// The function that tool_choice names, or empty.
std::string NamedFunction(const Json& choice) {
  const Json* function = Find(choice, "function");
  return function == nullptr ? std::string() : TextOr(*function, "name", "");
}

// Demands calls only, where they are forced: exactly one if it is named, as in OpenAI's API.
absl::StatusOr<Demand> ForcedCalls(const ToolFields& body, const RequestContext& context,
                                   bool parallel) {
  const TextCodec& codec = *context.codec;
  const std::string name = NamedFunction(*body.Value<"tool_choice">());
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<CallableTool> tools,
                          Callable(body, name, /*all_strict=*/true, context));
  const int32_t max_calls = parallel && name.empty() ? kMaxForcedCalls : 1;
  return Demand{"tools", CallsConstraint(*codec.syntax().tools, tools, max_calls, EndMarks(codec))};
}

// The model may call tools; otherwise it answers as `format` demands, if it does.
absl::StatusOr<std::optional<Demand>> FreeCalls(const ToolFields& body,
                                                const RequestContext& context, bool parallel,
                                                std::optional<Demand> format) {
  const TextCodec& codec = *context.codec;
  const ToolSyntax* syntax = codec.syntax().tools;
  const Json& offered = *body.Value<"tools">();
  const bool is_strict = std::any_of(offered.begin(), offered.end(), IsStrict);
  const bool has_grammars = context.text_grammars != nullptr && !context.text_grammars->empty();
  if (!is_strict && !has_grammars && !format) return std::nullopt;
  if (syntax == nullptr || !HasCallGrammar(*syntax)) {
    if (!is_strict) return format;
    return FieldError("tools",
                      base::StrCat("'strict' tools need a model whose calls are written in a known "
                                   "format; this one's are not (",
                                   syntax == nullptr ? "none" : syntax->name, ")"),
                      "unsupported_parameter");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<CallableTool> tools,
                          Callable(body, "", /*all_strict=*/false, context));
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

absl::StatusOr<std::vector<Demand>> ReadDemands(const GenerationFields& body) {
  std::vector<Demand> demands;
  if (const auto format = body.Object<"response_format", fields::kResponseFormat>()) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<Demand> demand, FromResponseFormat(*format));
    if (demand) demands.push_back(*std::move(demand));
  }
  const auto add = [&demands](const Json* value, Form form, const char* name) {
    return AddDemand(value, form, name, &demands);
  };
  HEDDLE_RETURN_IF_ERROR(add(body.Value<"guided_json">(), Form::kSchema, "guided_json"));
  HEDDLE_RETURN_IF_ERROR(add(body.Value<"guided_regex">(), Form::kRegex, "guided_regex"));
  HEDDLE_RETURN_IF_ERROR(add(body.Value<"guided_choice">(), Form::kChoice, "guided_choice"));
  HEDDLE_RETURN_IF_ERROR(add(body.Value<"guided_grammar">(), Form::kGrammar, "guided_grammar"));
  HEDDLE_RETURN_IF_ERROR(add(body.Value<"json_schema">(), Form::kSchema, "json_schema"));
  HEDDLE_RETURN_IF_ERROR(add(body.Value<"grammar">(), Form::kGrammar, "grammar"));
  if (const auto object = body.Object<"structured_outputs", fields::kStructuredOutputs>()) {
    HEDDLE_RETURN_IF_ERROR(CheckStructuredMembers(*body.Value<"structured_outputs">()));
    HEDDLE_RETURN_IF_ERROR(ReadStructuredOutputs(*object, &demands));
  }
  return demands;
}

// Returns the known grammar of the constraint, or compiles it while the context has patience.
// `format`: a part that is checked separately, so that an error names its field.
absl::StatusOr<std::shared_ptr<CompiledGrammar>> CompileDemand(const Demand& demand,
                                                               const std::optional<Demand>& format,
                                                               const RequestContext& context) {
  GrammarCompiler& grammars = context.codec->grammars();
  const Patience& patience = context.patience;
  if (auto known = grammars.Known(demand.constraint)) return known;
  absl::Status status;
  const Demand* part = nullptr;  // the part that the status is about
  for (const Demand* next : {format ? &*format : nullptr, &demand}) {
    if (next == nullptr || !status.ok()) continue;
    part = next;
    status = grammars.Refusal(next->constraint);
  }
  if (!status.ok()) return NameField(status, *part);
  if (patience.short_only && (patience.ask == nullptr || !grammars.is_warm())) return TakesLong();
  if (format) {
    status = grammars.Check(format->constraint, patience.ask);
    if (!status.ok()) return IsRefusal(status) ? NameField(status, *format) : status;
  }
  auto grammar = grammars.Compile(demand.constraint, patience.ask);
  if (grammar.ok() || !IsRefusal(grammar.status())) return grammar;
  return NameField(grammar.status(), demand);
}

// Whether some call must be made. "any" is Mistral's word for it.
bool WantsAnyCall(const Json& choice) { return choice == "required" || choice == "any"; }

}  // namespace

bool ForcesCall(const ToolFields& body) {
  const Json* choice = body.Value<"tool_choice">();
  return choice != nullptr && (choice->is_object() || WantsAnyCall(*choice));
}

absl::Status CheckToolChoice(const ToolFields& body, const TextCodec& codec) {
  const Json* choice = body.Value<"tool_choice">();
  if (choice == nullptr || *choice == "none" || *choice == "auto") return absl::OkStatus();
  const Json* function = Find(*choice, "function");
  const std::string* name = function == nullptr ? nullptr : TextOf(Find(*function, "name"));
  if (!WantsAnyCall(*choice) && name == nullptr) {
    return FieldError("tool_choice",
                      base::StrCat("'tool_choice' must be 'auto', 'none', 'required' or "
                                   "{\"type\":\"function\",\"function\":{\"name\":...}}, found ",
                                   ShowJson(*choice)));
  }
  if (!OffersTools(body)) return FieldError("tool_choice", "'tool_choice' needs 'tools'");
  if (name != nullptr && !ReadToolSet(body).Has(*name)) {
    return FieldError(
        "tool_choice.function.name",
        base::StrCat("'tool_choice' names ", base::Quote(*name), ", which is none of 'tools'"));
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
    const GenerationFields& body, const std::optional<ToolFields>& tools,
    const RequestContext& context, const ApiRequest& request) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<Demand> demands, ReadDemands(body));
  const bool offers_tools = tools.has_value() && OffersTools(*tools);
  const bool is_forced = offers_tools && ForcesCall(*tools);
  if (is_forced) {
    // A turn that must be a call is none of that format: it applies to the answer after the call.
    std::erase_if(demands,
                  [](const Demand& demand) { return demand.param.starts_with("response_format"); });
    HEDDLE_ASSIGN_OR_RETURN(Demand demand,
                            ForcedCalls(*tools, context, request.parallel_tool_calls));
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
  std::optional<Demand> format;  // demanded beside the tools
  if (offers_tools && !is_forced) {
    format = demand;
    HEDDLE_ASSIGN_OR_RETURN(
        demand, FreeCalls(*tools, context, request.parallel_tool_calls, std::move(demand)));
  }
  if (!demand) return nullptr;
  if (const ReasoningSyntax* reasoning = request.syntax.reasoning) {
    demand->constraint =
        BehindReasoning(*reasoning, request.begins_in_reasoning, std::move(demand->constraint));
  }
  if (context.policy.drops_unsupported) {
    DropUnsupported(&demand->constraint);
    if (format) DropUnsupported(&format->constraint);
  }
  return CompileDemand(*demand, format, context);
}

}  // namespace heddle::server
