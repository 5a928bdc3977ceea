#include "server/openai/request_parts.h"

#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_error.h"
#include "server/openai/chat_messages.h"
#include "server/openai/constraint.h"
#include "server/openai/fields.h"

namespace heddle::server {
namespace {

constexpr std::string_view kMissing = "missing_required_parameter";

absl::StatusOr<ApiPrompt> TextPrompt(const std::string& text, std::string_view path,
                                     bool add_special, bool echo, const TextCodec& codec) {
  ApiPrompt prompt;
  HEDDLE_ASSIGN_OR_RETURN(prompt.tokens, codec.Encode(text, add_special));
  if (prompt.tokens.empty()) {
    return FieldError(path,
                      base::StrCat("'", path, "' is empty: the model needs one token at least"));
  }
  if (echo) prompt.text = text;
  return prompt;
}

absl::StatusOr<ApiPrompt> TokenPrompt(const Json& array, std::string_view path, bool echo,
                                      const TextCodec& codec) {
  ApiPrompt prompt;
  HEDDLE_ASSIGN_OR_RETURN(prompt.tokens, ReadTokenIds(array, path, codec.vocab()));
  if (prompt.tokens.empty()) {
    return FieldError(path,
                      base::StrCat("'", path, "' is empty: the model needs one token at least"));
  }
  if (echo) prompt.text = codec.Decode(prompt.tokens, /*skip_special=*/true);
  return prompt;
}

absl::StatusOr<Json> TemplateArguments(const Json& body) {
  Json kwargs = Json::object();
  if (const Json* given = Find(body, "chat_template_kwargs")) kwargs = *given;
  if (const Json* effort = Find(body, "reasoning_effort")) {
    kwargs["reasoning_effort"] = *effort;
    if (*effort == "none" && !kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = false;
  }
  if (const Json* thinking = Find(body, "enable_thinking")) kwargs["enable_thinking"] = *thinking;
  return kwargs;
}

// The tools that the model is to see, or null.
absl::StatusOr<const Json*> VisibleTools(const Json& body) {
  const Json* tools = Find(body, "tools");
  if (tools != nullptr && tools->empty()) tools = nullptr;
  if (tools != nullptr) HEDDLE_RETURN_IF_ERROR(CheckTools(*tools));
  const Json* choice = Find(body, "tool_choice");
  if (choice == nullptr) return tools;
  return *choice == "none" ? nullptr : tools;
}

// The last message is one that the model may go on with.
absl::Status CheckContinuable(const Json& messages, const ChatPrompt& prompt) {
  if (prompt.add_generation_prompt) {
    return FieldError("continue_final_message",
                      "'continue_final_message' goes on with the last message and "
                      "'add_generation_prompt' begins a new one: only one of them can be true");
  }
  if (messages.empty() || messages.back()["role"] != "assistant") {
    return FieldError("continue_final_message",
                      "'continue_final_message' needs an assistant's message at the end");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBody(const Json& body, std::span<const Field> fields,
                       std::span<const RefusedField> refused, const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(CheckFields(body, fields));
  HEDDLE_RETURN_IF_ERROR(CheckRefused(body, refused));
  return context.policy.ignore_unknown_fields ? absl::OkStatus()
                                              : CheckKnown(body, fields, refused);
}

absl::Status RenameFields(absl::Status status, std::span<const Renamed> names) {
  const ApiError error = ToApiError(status);
  for (const Renamed& name : names) {
    if (!error.param.starts_with(name.from)) continue;
    std::string message = error.message;
    const std::string quoted = base::StrCat("'", name.from);
    if (message.starts_with(quoted)) {
      message = base::StrCat("'", name.to, message.substr(quoted.size()));
    }
    absl::Status renamed(status.code(), message);
    renamed =
        WithParam(std::move(renamed), base::StrCat(name.to, error.param.substr(name.from.size())));
    return WithCode(std::move(renamed), error.code);
  }
  return status;
}

bool IsModelName(std::string_view name, const ServedModel& model) {
  return name == model.id ||
         std::find(model.aliases.begin(), model.aliases.end(), name) != model.aliases.end();
}

absl::Status UnknownModel(std::string_view name, const ServedModel& model) {
  absl::Status status = absl::NotFoundError(base::StrCat(
      "the model ", base::Quote(name), " does not exist; this server has ", base::Quote(model.id)));
  return WithCode(WithParam(std::move(status), "model"), "model_not_found");
}

absl::Status CheckModel(const Json& body, const ServedModel& model) {
  const Json* name = Find(body, "model");
  if (name == nullptr || IsModelName(name->get_ref<const std::string&>(), model)) {
    return absl::OkStatus();
  }
  return UnknownModel(name->get_ref<const std::string&>(), model);
}

absl::StatusOr<std::vector<TokenId>> ReadTokenIds(const Json& array, std::string_view path,
                                                  int32_t vocab) {
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (const Json& entry : array) {
    if (!entry.is_number_integer()) {
      return FieldError(path,
                        base::StrCat("'", path, "' must hold token ids, found ", JsonKind(entry),
                                     " at index ", tokens.size()),
                        "invalid_type");
    }
    // Compared as double: an unsigned 64-bit id must not wrap into the range.
    auto id = entry.get<double>();
    if (id < 0 || id >= vocab) {
      return FieldError(path, base::StrCat("'", path, "' must hold token ids from 0 to ", vocab - 1,
                                           ", found ", entry.dump(), " at index ", tokens.size()));
    }
    tokens.push_back(entry.get<TokenId>());
  }
  return tokens;
}

absl::StatusOr<std::vector<ApiPrompt>> ReadPrompts(const Json& body, std::string_view name,
                                                   size_t max_prompts, bool echo,
                                                   const TextCodec& codec) {
  const Json* value = Find(body, name);
  if (value == nullptr) return FieldError(name, base::StrCat("'", name, "' is missing"), kMissing);
  // The tokens of filling in come before any begin token.
  const Json* suffix = Find(body, "suffix");
  bool fills = suffix != nullptr && !suffix->get_ref<const std::string&>().empty();
  bool add_special = !fills && GetBool(body, "add_special_tokens", true);
  std::vector<ApiPrompt> prompts;
  if (value->is_string() || value->empty() || value->front().is_number()) {
    HEDDLE_ASSIGN_OR_RETURN(
        ApiPrompt prompt,
        value->is_string() ? TextPrompt(value->get<std::string>(), name, add_special, echo, codec)
                           : TokenPrompt(*value, name, echo, codec));
    prompts.push_back(std::move(prompt));
  } else if (value->size() > max_prompts) {
    return FieldError(name, base::StrCat("'", name, "' must have at most ", max_prompts,
                                         " entries, found ", value->size()));
  } else {
    for (size_t i = 0; i < value->size(); ++i) {
      const Json& entry = (*value)[i];
      std::string path = base::StrCat(name, "[", i, "]");
      if (!entry.is_string() && !entry.is_array()) {
        return FieldError(
            path,
            base::StrCat("'", path, "' must be a string or token ids, found ", JsonKind(entry)),
            "invalid_type");
      }
      HEDDLE_ASSIGN_OR_RETURN(
          ApiPrompt prompt,
          entry.is_string() ? TextPrompt(entry.get<std::string>(), path, add_special, echo, codec)
                            : TokenPrompt(entry, path, echo, codec));
      prompts.push_back(std::move(prompt));
    }
  }
  return prompts;
}

absl::Status AddSuffix(const Json& body, const TextCodec& codec, std::vector<ApiPrompt>* prompts) {
  const Json* suffix = Find(body, "suffix");
  if (suffix == nullptr || suffix->get_ref<const std::string&>().empty()) return absl::OkStatus();
  std::optional<FillTokens> fill = codec.fill_tokens();
  if (!fill.has_value()) {
    return FieldError("suffix", "the model has no tokens for filling in the middle",
                      "unsupported_parameter");
  }
  if (GetBool(body, "echo", false)) {
    return FieldError("suffix", "'suffix' and 'echo' cannot be given together");
  }
  HEDDLE_ASSIGN_OR_RETURN(
      std::vector<TokenId> after,
      codec.Encode(suffix->get_ref<const std::string&>(), /*add_special=*/false));
  for (ApiPrompt& prompt : *prompts) {
    prompt.tokens.insert(prompt.tokens.begin(), fill->prefix);
    prompt.tokens.push_back(fill->suffix);
    prompt.tokens.insert(prompt.tokens.end(), after.begin(), after.end());
    prompt.tokens.push_back(fill->middle);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Json>> WithAllowedTools(const Json& body) {
  constexpr std::string_view kPath = "tool_choice.allowed_tools";
  const Json* choice = Find(body, "tool_choice");
  const Json* type = choice != nullptr && choice->is_object() ? Find(*choice, "type") : nullptr;
  if (type == nullptr || *type != "allowed_tools") return std::nullopt;
  const Json* allowed = Find(*choice, "allowed_tools");
  const Json* mode = allowed != nullptr && allowed->is_object() ? Find(*allowed, "mode") : nullptr;
  if (mode == nullptr || (*mode != "auto" && *mode != "required")) {
    return FieldError(base::StrCat(kPath, ".mode"),
                      base::StrCat("'", kPath, ".mode' must be 'auto' or 'required'"));
  }
  const Json* named = Find(*allowed, "tools");
  const Json* tools = Find(body, "tools");
  if (named == nullptr || !named->is_array() || named->empty() || tools == nullptr) {
    return FieldError(base::StrCat(kPath, ".tools"),
                      base::StrCat("'", kPath, ".tools' must name some of 'tools'"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckTools(*tools));
  HEDDLE_RETURN_IF_ERROR(CheckTools(*named, base::StrCat(kPath, ".tools")));
  Json kept = Json::array();
  for (const Json& entry : *named) {
    const Json& name = (*Find(entry, "function"))["name"];
    const auto tool = std::find_if(tools->begin(), tools->end(), [&name](const Json& candidate) {
      return (*Find(candidate, "function"))["name"] == name;
    });
    if (tool == tools->end()) {
      return FieldError(
          base::StrCat(kPath, ".tools"),
          base::StrCat("'", kPath, ".tools' names ", name.dump(), ", which is none of 'tools'"));
    }
    kept.push_back(*tool);
  }
  Json resolved = body;
  resolved["tools"] = std::move(kept);
  resolved["tool_choice"] = *mode;
  return resolved;
}

ToolSet ReadToolSet(const Json& body) {
  ToolSet set;
  if (!OffersTools(body)) return set;
  for (const Json& entry : *Find(body, "tools")) {
    const Json& function = *Find(entry, "function");
    ToolSet::Tool tool{Find(function, "name")->get<std::string>(), {}};
    const Json* schema = Find(function, "parameters");
    const Json* properties =
        schema != nullptr && schema->is_object() ? Find(*schema, "properties") : nullptr;
    if (properties != nullptr && properties->is_object()) {
      for (auto it = properties->begin(); it != properties->end(); ++it) {
        const Json* type = it->is_object() ? Find(*it, "type") : nullptr;
        // Without one type (anyOf, a list of types) the value is read as JSON where it is JSON.
        tool.types.emplace_back(it.key(), type != nullptr && type->is_string()
                                              ? type->get<std::string>()
                                              : std::string("any"));
      }
    }
    set.tools.push_back(std::move(tool));
  }
  return set;
}

bool OffersTools(const Json& body) {
  const Json* tools = Find(body, "tools");
  const Json* choice = Find(body, "tool_choice");
  return tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
}

absl::StatusOr<std::vector<TokenId>> EncodeMessages(const Json& body,
                                                    const RequestContext& context) {
  const TextCodec& codec = *context.codec;
  const Json* messages = Find(body, "messages");
  if (messages == nullptr) return FieldError("messages", "'messages' is missing", kMissing);
  HEDDLE_ASSIGN_OR_RETURN(Json normalized, NormalizeMessages(*messages));
  HEDDLE_ASSIGN_OR_RETURN(const Json* tools, VisibleTools(body));
  HEDDLE_RETURN_IF_ERROR(CheckToolChoice(body, codec));
  HEDDLE_ASSIGN_OR_RETURN(Json kwargs, TemplateArguments(body));
  // What a template does with values of the client's own is the template's secret.
  if (context.quick && Find(body, "chat_template_kwargs") != nullptr) return TakesLong();
  ChatPrompt prompt;
  prompt.messages = &normalized;
  prompt.tools = tools;
  if (tools != nullptr && !codec.knows_tools()) {
    return FieldError("tools", "the model's chat template has no place for tools",
                      "unsupported_parameter");
  }
  prompt.kwargs = &kwargs;
  prompt.continue_final = GetBool(body, "continue_final_message", false);
  prompt.add_generation_prompt = GetBool(body, "add_generation_prompt", !prompt.continue_final);
  if (prompt.continue_final) HEDDLE_RETURN_IF_ERROR(CheckContinuable(normalized, prompt));
  absl::StatusOr<std::vector<TokenId>> tokens = codec.EncodeChat(prompt);
  if (!tokens.ok() && tokens.status().code() == absl::StatusCode::kUnimplemented) {
    return FieldError("messages", MessageOf(tokens.status()), "no_chat_template");
  }
  if (!tokens.ok() && absl::IsInvalidArgument(tokens.status())) {
    return FieldError("messages", MessageOf(tokens.status()));
  }
  if (tokens.ok() && tokens->empty()) {
    return FieldError("messages", "the chat template made an empty prompt of these messages");
  }
  return tokens;
}

absl::StatusOr<size_t> CountChatTokens(const Json& chat, const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(CheckFields(chat, ChatFields()));
  HEDDLE_RETURN_IF_ERROR(CheckModel(chat, *context.model));
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<Json> resolved, WithAllowedTools(chat));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                          EncodeMessages(resolved.has_value() ? *resolved : chat, context));
  return tokens.size();
}

}  // namespace heddle::server
