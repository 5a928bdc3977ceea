#include "server/openai/request_parts.h"

#include <algorithm>
#include <functional>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/chat_messages.h"
#include "server/openai/constraint.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr std::string_view kMissing = "missing_required_parameter";

absl::StatusOr<ApiPrompt> TextPrompt(const std::string& text, std::string_view path,
                                     bool add_special, bool echo, const TextCodec& codec) {
  ApiPrompt prompt;
  HEDDLE_ASSIGN_OR_RETURN(prompt.tokens, EncodeField(text, path, add_special, codec));
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

Json TemplateArguments(const ConversationFields& body) {
  Json kwargs = Json::object();
  if (const Json* given = body.Value<"chat_template_kwargs">()) kwargs = *given;
  if (const std::string* effort = body.Text<"reasoning_effort">()) {
    kwargs["reasoning_effort"] = *effort;
    if (*effort == "none" && !kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = false;
  }
  if (const Json* thinking = body.Value<"enable_thinking">()) kwargs["enable_thinking"] = *thinking;
  return kwargs;
}

// The tools that the model may see, or null.
absl::StatusOr<const Json*> VisibleTools(const ToolFields& body) {
  const Json* tools = body.Value<"tools">();
  if (tools != nullptr && tools->empty()) tools = nullptr;
  if (tools != nullptr) HEDDLE_RETURN_IF_ERROR(CheckTools(*tools));
  const Json* choice = body.Value<"tool_choice">();
  if (choice == nullptr) return tools;
  return *choice == "none" ? nullptr : tools;
}

// REQUIRES: CheckTools has passed `tool`, an entry of "tools".
std::string FunctionName(const Json& tool) {
  const Json* function = Find(tool, "function");
  return function == nullptr ? std::string() : TextOr(*function, "name", "");
}

// Checks that the last message is one that the model may continue.
absl::Status CheckContinuable(const Json& messages, const ChatPrompt& prompt) {
  if (prompt.add_generation_prompt) {
    return FieldError("continue_final_message",
                      "'continue_final_message' goes on with the last message and "
                      "'add_generation_prompt' begins a new one: only one of them can be true");
  }
  if (messages.empty() || TextOr(messages.back(), "role", "") != "assistant") {
    return FieldError("continue_final_message",
                      "'continue_final_message' needs an assistant's message at the end");
  }
  return absl::OkStatus();
}

// Calls `use` with the template's input for a conversation; errors name the fields at fault.
absl::Status UseChatPrompt(const ConversationFields& body, const RequestContext& context,
                           const std::function<absl::Status(const ChatPrompt&)>& use) {
  const TextCodec& codec = *context.codec;
  const Json* messages = body.Value<"messages">();
  if (messages == nullptr) return FieldError("messages", "'messages' is missing", kMissing);
  HEDDLE_ASSIGN_OR_RETURN(Json normalized, NormalizeMessages(*messages));
  HEDDLE_ASSIGN_OR_RETURN(const Json* tools, VisibleTools(body));
  HEDDLE_RETURN_IF_ERROR(CheckToolChoice(body, codec));
  const Json kwargs = TemplateArguments(body);
  // The time that a template takes with the client's own values is unknown.
  if (context.patience.short_only && body.Has<"chat_template_kwargs">()) return TakesLong();
  if (tools != nullptr && !codec.knows_tools()) {
    return FieldError("tools", "the model's chat template has no place for tools",
                      "unsupported_parameter");
  }
  ChatPrompt prompt;
  prompt.messages = &normalized;
  prompt.tools = tools;
  prompt.kwargs = &kwargs;
  prompt.continue_final = body.Bool<"continue_final_message">(false);
  prompt.add_generation_prompt = body.Bool<"add_generation_prompt">(!prompt.continue_final);
  if (prompt.continue_final) HEDDLE_RETURN_IF_ERROR(CheckContinuable(normalized, prompt));
  const absl::Status status = use(prompt);
  if (status.code() == absl::StatusCode::kUnimplemented) {
    return FieldError("messages", MessageOf(status), "no_chat_template");
  }
  return absl::IsInvalidArgument(status) ? FieldError("messages", MessageOf(status)) : status;
}

}  // namespace

absl::Status CheckOthers(const Json& body, std::span<const Field> fields,
                         std::span<const RefusedField> refused, const RequestContext& context) {
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

absl::StatusOr<ModelChoice> CheckModel(const RequestFields<fields::kModelPart>& body,
                                       const RequestContext& context) {
  return ChooseModel(body.Text<"model">(), /*lora=*/nullptr, context);
}

absl::StatusOr<std::vector<TokenId>> EncodeField(std::string_view text, std::string_view path,
                                                 bool add_special, const TextCodec& codec) {
  absl::StatusOr<std::vector<TokenId>> tokens = codec.Encode(text, add_special);
  if (!absl::IsInvalidArgument(tokens.status())) return tokens;
  return FieldError(path, base::StrCat("'", path, "': ", MessageOf(tokens.status())));
}

absl::StatusOr<std::vector<TokenId>> ReadTokenIds(const Json& array, std::string_view path,
                                                  int32_t vocab) {
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (const Json& entry : array) {
    const std::optional<int64_t> id = IntegerOf(entry);
    if (!id.has_value()) {
      return FieldError(path,
                        base::StrCat("'", path, "' must hold token ids, found ", JsonKind(entry),
                                     " at index ", tokens.size()),
                        "invalid_type");
    }
    if (*id < 0 || *id >= vocab) {
      return FieldError(path, base::StrCat("'", path, "' must hold token ids from 0 to ", vocab - 1,
                                           ", found ", entry.dump(), " at index ", tokens.size()));
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

bool KeepLast(int64_t limit, std::vector<TokenId>* tokens) {
  const auto size = static_cast<int64_t>(tokens->size());
  if (size <= limit) return false;
  tokens->erase(tokens->begin(), tokens->begin() + (size - limit));
  return true;
}

absl::Status ZeroTruncation() {
  return FieldError("truncate_prompt_tokens",
                    "'truncate_prompt_tokens' must be at least 1, or -1, found 0");
}

absl::StatusOr<std::vector<ApiPrompt>> ReadPrompts(const Json& value, std::string_view name,
                                                   const PromptOptions& options,
                                                   const TextCodec& codec) {
  const auto read = [&](const Json& entry, std::string_view path) {
    const std::string* text = TextOf(&entry);
    return text != nullptr ? TextPrompt(*text, path, options.add_special, options.echo, codec)
                           : TokenPrompt(entry, path, options.echo, codec);
  };
  std::vector<ApiPrompt> prompts;
  if (value.is_string() || value.empty() || value.front().is_number()) {
    HEDDLE_ASSIGN_OR_RETURN(ApiPrompt prompt, read(value, name));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (value.size() > options.max_prompts) {
    return FieldError(name, base::StrCat("'", name, "' must have at most ", options.max_prompts,
                                         " entries, found ", value.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& entry = value[i];
    const std::string path = base::StrCat(name, "[", i, "]");
    if (!entry.is_string() && !entry.is_array()) {
      return FieldError(
          path, base::StrCat("'", path, "' must be a string or token ids, found ", JsonKind(entry)),
          "invalid_type");
    }
    HEDDLE_ASSIGN_OR_RETURN(ApiPrompt prompt, read(entry, path));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

absl::Status AddSuffix(const RequestFields<fields::kCompletion>& body, const TextCodec& codec,
                       std::vector<ApiPrompt>* prompts) {
  const std::string* suffix = body.Text<"suffix">();
  if (suffix == nullptr || suffix->empty()) return absl::OkStatus();
  std::optional<FillTokens> fill = codec.fill_tokens();
  if (!fill.has_value()) {
    return FieldError("suffix", "the model has no tokens for filling in the middle",
                      "unsupported_parameter");
  }
  if (body.Bool<"echo">(false)) {
    return FieldError("suffix", "'suffix' and 'echo' cannot be given together");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> after,
                          EncodeField(*suffix, "suffix", /*add_special=*/false, codec));
  for (ApiPrompt& prompt : *prompts) {
    prompt.tokens.insert(prompt.tokens.begin(), fill->prefix);
    prompt.tokens.push_back(fill->suffix);
    prompt.tokens.insert(prompt.tokens.end(), after.begin(), after.end());
    prompt.tokens.push_back(fill->middle);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Json>> WithAllowedTools(const ToolFields& fields, const Json& body) {
  constexpr std::string_view kPath = "tool_choice.allowed_tools";
  const Json* choice = fields.Value<"tool_choice">();
  if (choice == nullptr || TextOr(*choice, "type", "") != "allowed_tools") return std::nullopt;
  const Json* allowed = Find(*choice, "allowed_tools");
  const std::string mode = allowed == nullptr ? "" : TextOr(*allowed, "mode", "");
  if (mode != "auto" && mode != "required") {
    return FieldError(base::StrCat(kPath, ".mode"),
                      base::StrCat("'", kPath, ".mode' must be 'auto' or 'required'"));
  }
  const Json* named = Find(*allowed, "tools");
  const Json* tools = fields.Value<"tools">();
  if (named == nullptr || !named->is_array() || named->empty() || tools == nullptr) {
    return FieldError(base::StrCat(kPath, ".tools"),
                      base::StrCat("'", kPath, ".tools' must name some of 'tools'"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckTools(*tools));
  HEDDLE_RETURN_IF_ERROR(CheckTools(*named, base::StrCat(kPath, ".tools")));
  Json kept = Json::array();
  for (const Json& entry : *named) {
    const std::string name = FunctionName(entry);
    const auto tool = std::find_if(tools->begin(), tools->end(), [&name](const Json& candidate) {
      return FunctionName(candidate) == name;
    });
    if (tool == tools->end()) {
      return FieldError(base::StrCat(kPath, ".tools"),
                        base::StrCat("'", kPath, ".tools' names ", base::Quote(name),
                                     ", which is none of 'tools'"));
    }
    kept.push_back(*tool);
  }
  Json resolved = body;
  resolved["tools"] = std::move(kept);
  resolved["tool_choice"] = mode;
  return resolved;
}

ToolSet ReadToolSet(const ToolFields& body) {
  ToolSet set;
  if (!OffersTools(body)) return set;
  for (const Json& entry : *body.Value<"tools">()) {
    ToolSet::Tool tool{FunctionName(entry), {}};
    const Json* function = Find(entry, "function");
    const Json* schema = function == nullptr ? nullptr : Find(*function, "parameters");
    const Json* properties = schema == nullptr ? nullptr : Find(*schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      for (auto it = properties->begin(); it != properties->end(); ++it) {
        // Without a single type (anyOf, a list of types) the value is read as JSON if it is valid
        // JSON.
        tool.types.emplace_back(it.key(), TextOr(*it, "type", "any"));
      }
    }
    set.tools.push_back(std::move(tool));
  }
  return set;
}

bool OffersTools(const ToolFields& body) {
  const Json* tools = body.Value<"tools">();
  const Json* choice = body.Value<"tool_choice">();
  return tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
}

absl::StatusOr<std::vector<TokenId>> EncodeMessages(const ConversationFields& body,
                                                    const RequestContext& context) {
  std::vector<TokenId> tokens;
  HEDDLE_RETURN_IF_ERROR(UseChatPrompt(body, context, [&](const ChatPrompt& prompt) {
    HEDDLE_ASSIGN_OR_RETURN(tokens, context.codec->EncodeChat(prompt));
    return absl::OkStatus();
  }));
  if (tokens.empty()) {
    return FieldError("messages", "the chat template made an empty prompt of these messages");
  }
  return tokens;
}

absl::StatusOr<std::string> RenderMessages(const ConversationFields& body,
                                           const RequestContext& context) {
  std::string text;
  HEDDLE_RETURN_IF_ERROR(UseChatPrompt(body, context, [&](const ChatPrompt& prompt) {
    HEDDLE_ASSIGN_OR_RETURN(text, context.codec->RenderChat(prompt));
    return absl::OkStatus();
  }));
  return text;
}

absl::StatusOr<size_t> CountChatTokens(const Json& chat, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kChat> fields,
                          RequestFields<fields::kChat>::Check(chat));
  HEDDLE_RETURN_IF_ERROR(CheckModel(fields, context).status());
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<Json> resolved, WithAllowedTools(fields, chat));
  if (resolved.has_value()) return CountChatTokens(*resolved, context);
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, EncodeMessages(fields, context));
  return tokens.size();
}

std::string CommonMembers(const std::string* model, const Json* lora,
                          const std::string* cache_salt) {
  Json common = Json::object();
  if (model != nullptr) common["model"] = *model;
  if (lora != nullptr) common["lora"] = *lora;
  if (cache_salt != nullptr) common["cache_salt"] = *cache_salt;
  return common.dump();
}

}  // namespace heddle::server
