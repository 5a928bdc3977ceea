#include "server/openai/messages_request.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_error.h"
#include "server/openai/fields.h"
#include "server/openai/request_parts.h"

namespace heddle::server {
namespace {

std::string StringOr(const Json& object, std::string_view name, std::string_view fallback) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string(fallback);
}

constexpr std::string_view kMissing = "missing_required_parameter";

// The text under `name`; `path` is the object's, for errors.
absl::StatusOr<std::string> RequireString(const Json& object, std::string_view name,
                                          std::string_view path) {
  const Json* value = Find(object, name);
  const std::string full = base::StrCat(path, path.empty() ? "" : ".", name);
  if (value == nullptr) return FieldError(full, base::StrCat("'", full, "' is missing"), kMissing);
  if (value->is_string()) return value->get<std::string>();
  return FieldError(full, base::StrCat("'", full, "' must be a string, found ", JsonKind(*value)),
                    "invalid_type");
}

absl::Status WrongBlock(std::string_view path, std::string_view type) {
  return FieldError(base::StrCat(path, ".type"),
                    base::StrCat("'", path,
                                 ".type': this model takes text, tool_use, tool_result "
                                 "and thinking blocks, found ",
                                 base::Quote(type)),
                    "unsupported_content");
}

// Text blocks as one string; the path is for errors.
absl::StatusOr<std::string> BlocksText(const Json& content, std::string_view path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return FieldError(
        path, base::StrCat("'", path, "' must be a string or blocks, found ", JsonKind(content)),
        "invalid_type");
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    std::string block_path = base::StrCat(path, "[", i, "]");
    std::string type = content[i].is_object() ? StringOr(content[i], "type", "") : "";
    if (type != "text") return WrongBlock(block_path, type);
    if (i > 0) text.push_back('\n');
    HEDDLE_ASSIGN_OR_RETURN(const std::string part, RequireString(content[i], "text", block_path));
    text.append(part);
  }
  return text;
}

// What the blocks of one message came to.
struct Turn {
  Json text = Json::array();  // content parts
  Json calls = Json::array();
  Json results = Json::array();  // messages of tools
  std::string reasoning;
};

absl::Status AddBlock(const Json& block, std::string_view path, Turn* turn) {
  std::string type = block.is_object() ? StringOr(block, "type", "") : "";
  if (type == "text") {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, RequireString(block, "text", path));
    turn->text.push_back({{"type", "text"}, {"text", std::move(text)}});
  } else if (type == "thinking") {
    HEDDLE_ASSIGN_OR_RETURN(const std::string thinking, RequireString(block, "thinking", path));
    turn->reasoning.append(thinking);
  } else if (type == "tool_use") {
    HEDDLE_ASSIGN_OR_RETURN(std::string id, RequireString(block, "id", path));
    HEDDLE_ASSIGN_OR_RETURN(std::string name, RequireString(block, "name", path));
    const Json* input = Find(block, "input");
    turn->calls.push_back(
        {{"id", std::move(id)},
         {"type", "function"},
         {"function",
          {{"name", std::move(name)}, {"arguments", input == nullptr ? Json::object() : *input}}}});
  } else if (type == "tool_result") {
    HEDDLE_ASSIGN_OR_RETURN(std::string id, RequireString(block, "tool_use_id", path));
    const Json* content = Find(block, "content");
    std::string text;
    if (content != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(text, BlocksText(*content, base::StrCat(path, ".content")));
    }
    turn->results.push_back({{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", text}});
  } else if (type != "redacted_thinking") {
    return WrongBlock(path, type);
  }
  return absl::OkStatus();
}

absl::Status AddMessage(const Json& message, std::string_view path, Json* messages) {
  std::string role = message.is_object() ? StringOr(message, "role", "") : "";
  if (role != "user" && role != "assistant" && role != "system") {
    return FieldError(
        base::StrCat(path, ".role"),
        base::StrCat("'", path, ".role' must be user or assistant, found ", base::Quote(role)));
  }
  const Json* content = Find(message, "content");
  std::string content_path = base::StrCat(path, ".content");
  if (content == nullptr) {
    return FieldError(content_path, base::StrCat("'", content_path, "' is missing"), kMissing);
  }
  if (content->is_string()) {
    messages->push_back({{"role", role}, {"content", *content}});
    return absl::OkStatus();
  }
  if (!content->is_array()) return BlocksText(*content, content_path).status();
  Turn turn;
  for (size_t i = 0; i < content->size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(AddBlock((*content)[i], base::StrCat(content_path, "[", i, "]"), &turn));
  }
  // Results answer the turn before, and stand before what the user says with them.
  for (Json& result : turn.results) messages->push_back(std::move(result));
  if (turn.text.empty() && turn.calls.empty() && !turn.results.empty()) return absl::OkStatus();
  Json& added = messages->emplace_back(Json{{"role", role}, {"content", turn.text}});
  if (!turn.calls.empty()) added["tool_calls"] = std::move(turn.calls);
  if (!turn.reasoning.empty()) added["reasoning_content"] = turn.reasoning;
  return absl::OkStatus();
}

// {"name","description","input_schema"} to a function.
absl::Status AddTools(const Json& tools, Json* chat) {
  Json& converted = (*chat)["tools"] = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    std::string path = base::StrCat("tools[", i, "]");
    std::string type = tools[i].is_object() ? StringOr(tools[i], "type", "custom") : "";
    std::string name = tools[i].is_object() ? StringOr(tools[i], "name", "") : "";
    if (type != "custom" || name.empty()) {
      return FieldError(path,
                        base::StrCat("'", path,
                                     "' must be a tool of the client's own with a "
                                     "name; this server has no tools"),
                        "unsupported_parameter");
    }
    Json function = {{"name", name}, {"description", StringOr(tools[i], "description", "")}};
    const Json* schema = Find(tools[i], "input_schema");
    function["parameters"] = schema == nullptr ? Json{{"type", "object"}} : *schema;
    converted.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return absl::OkStatus();
}

absl::Status AddToolChoice(const Json& choice, Json* chat) {
  std::string type = StringOr(choice, "type", "");
  if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    HEDDLE_ASSIGN_OR_RETURN(std::string name, RequireString(choice, "name", "tool_choice"));
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", std::move(name)}}}};
  } else {
    return FieldError("tool_choice.type",
                      base::StrCat("'tool_choice.type' must be auto, any, tool or none, found ",
                                   base::Quote(type)));
  }
  const Json* single = Find(choice, "disable_parallel_tool_use");
  if (single != nullptr && *single == true) (*chat)["parallel_tool_calls"] = false;
  return absl::OkStatus();
}

// enabled, adaptive and disabled; how much thinking there is to be, templates cannot be told.
absl::Status AddThinking(const Json& thinking, Json* chat) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string type, RequireString(thinking, "type", "thinking"));
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return FieldError("thinking.type",
                      base::StrCat("'thinking.type' must be enabled, adaptive or disabled, found ",
                                   base::Quote(type)));
  }
  (*chat)["enable_thinking"] = type != "disabled";
  return absl::OkStatus();
}

// {"effort", "format": {"type": "json_schema", "schema"}}.
absl::Status AddOutputConfig(const Json& config, Json* chat) {
  if (Find(config, "effort") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN((*chat)["reasoning_effort"],
                            RequireString(config, "effort", "output_config"));
  }
  const Json* format = Find(config, "format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) {
    return FieldError(
        "output_config.format",
        base::StrCat("'output_config.format' must be an object, found ", JsonKind(*format)),
        "invalid_type");
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string type,
                          RequireString(*format, "type", "output_config.format"));
  if (type != "json_schema") {
    return FieldError(
        "output_config.format.type",
        base::StrCat("'output_config.format.type' must be json_schema, found ", base::Quote(type)));
  }
  Json holder = {{"name", "output"}};
  if (const Json* schema = Find(*format, "schema")) holder["schema"] = *schema;
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(holder)}};
  return absl::OkStatus();
}

absl::StatusOr<Json> ChatBody(const Json& body) {
  Json chat = Json::object();
  for (std::string_view name : {"model", "temperature", "top_p", "top_k", "stream", "max_tokens",
                                "chat_template_kwargs", "cache_salt"}) {
    if (const Json* value = Find(body, name)) chat[std::string(name)] = *value;
  }
  if (const Json* stop = Find(body, "stop_sequences")) chat["stop"] = *stop;
  Json& messages = chat["messages"] = Json::array();
  if (const Json* system = Find(body, "system")) {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, BlocksText(*system, "system"));
    messages.push_back({{"role", "system"}, {"content", text}});
  }
  const Json* given = Find(body, "messages");
  if (given == nullptr) return FieldError("messages", "'messages' is missing", kMissing);
  for (size_t i = 0; i < given->size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(AddMessage((*given)[i], base::StrCat("messages[", i, "]"), &messages));
  }
  // A message of the assistant at the end is one to go on with.
  if (messages.back()["role"] == "assistant" && !messages.back().contains("tool_calls")) {
    chat["continue_final_message"] = true;
  }
  if (const Json* tools = Find(body, "tools")) HEDDLE_RETURN_IF_ERROR(AddTools(*tools, &chat));
  if (const Json* choice = Find(body, "tool_choice")) {
    HEDDLE_RETURN_IF_ERROR(AddToolChoice(*choice, &chat));
  }
  if (const Json* thinking = Find(body, "thinking")) {
    HEDDLE_RETURN_IF_ERROR(AddThinking(*thinking, &chat));
  }
  if (const Json* config = Find(body, "output_config")) {
    HEDDLE_RETURN_IF_ERROR(AddOutputConfig(*config, &chat));
  }
  return chat;
}

// Names of the chat request as this one has them.
constexpr Renamed kChatNames[] = {
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {"stop", "stop_sequences"},
    {"tool_choice.function.name", "tool_choice.name"},
};

}  // namespace

absl::StatusOr<ApiRequest> ParseMessagesRequest(std::string_view text,
                                                const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckBody(body, MessagesFields(), {}, context));
  if (Find(body, "max_tokens") == nullptr) {
    return FieldError("max_tokens", "'max_tokens' is missing", kMissing);
  }
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(body));
  absl::StatusOr<ApiRequest> request = ReadRequest(Endpoint::kChat, chat, context);
  if (!request.ok()) return RenameFields(request.status(), kChatNames);
  return request;
}

absl::StatusOr<std::string> CountMessageTokens(std::string_view text,
                                               const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckBody(body, MessagesFields(), {}, context));
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(body));
  HEDDLE_ASSIGN_OR_RETURN(const size_t tokens, CountChatTokens(chat, context));
  std::string out;
  JsonWriter(&out).BeginObject().Member("input_tokens", tokens).EndObject();
  return out;
}

}  // namespace heddle::server
