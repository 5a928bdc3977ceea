#include "server/anthropic/messages_request.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/anthropic/message_tools.h"
#include "server/anthropic/messages_fields.h"
#include "server/json_writer.h"
#include "server/openai/refused_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr std::string_view kMissing = "missing_required_parameter";

// The text under `name`; `path` is the object's, for error messages.
absl::StatusOr<std::string> RequireString(const Json& object, std::string_view name,
                                          std::string_view path) {
  const Json* value = Find(object, name);
  const std::string full = base::StrCat(path, path.empty() ? "" : ".", name);
  if (value == nullptr) return FieldError(full, base::StrCat("'", full, "' is missing"), kMissing);
  if (const std::string* text = TextOf(value)) return *text;
  return FieldError(full, base::StrCat("'", full, "' must be a string, found ", JsonKind(*value)),
                    "invalid_type");
}

absl::Status WrongBlock(std::string_view path, std::string_view type) {
  return FieldError(base::StrCat(path, ".type"),
                    base::StrCat("'", path,
                                 ".type': this model takes text, document, search_result, "
                                 "tool_use, tool_result and thinking blocks, found ",
                                 base::Quote(type)),
                    "unsupported_content");
}

// The text of blocks as one string; `path` is for error messages.
absl::StatusOr<std::string> BlocksText(const Json& content, std::string_view path) {
  if (const std::string* text = TextOf(&content)) return *text;
  if (!content.is_array()) {
    return FieldError(
        path, base::StrCat("'", path, "' must be a string or blocks, found ", JsonKind(content)),
        "invalid_type");
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    std::string block_path = base::StrCat(path, "[", i, "]");
    std::string type = TextOr(content[i], "type", "");
    if (type != "text") return WrongBlock(block_path, type);
    if (i > 0) text.push_back('\n');
    HEDDLE_ASSIGN_OR_RETURN(const std::string part, RequireString(content[i], "text", block_path));
    text.append(part);
  }
  return text;
}

// The text of a document: its title, the client's words about it, and its content.
absl::StatusOr<std::string> DocumentText(const Json& block, std::string_view path) {
  const Json* citations = Find(block, "citations");
  if (citations != nullptr && Find(*citations, "enabled") != nullptr &&
      *Find(*citations, "enabled") == true) {
    return FieldError(base::StrCat(path, ".citations"),
                      base::StrCat("'", path, ".citations': this server's models do not cite"),
                      "unsupported_parameter");
  }
  const std::string source_path = base::StrCat(path, ".source");
  const Json* source = Find(block, "source");
  const std::string type = source == nullptr ? "" : TextOr(*source, "type", "");
  std::string text;
  for (const char* name : {"title", "context"}) {
    if (Find(block, name) == nullptr) continue;
    HEDDLE_ASSIGN_OR_RETURN(const std::string line, RequireString(block, name, path));
    text.append(line).append("\n");
  }
  if (type == "text") {
    HEDDLE_ASSIGN_OR_RETURN(const std::string data, RequireString(*source, "data", source_path));
    return text + data;
  }
  if (type == "content" && Find(*source, "content") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(
        const std::string data,
        BlocksText(*Find(*source, "content"), base::StrCat(source_path, ".content")));
    return text + data;
  }
  return FieldError(base::StrCat(source_path, ".type"),
                    base::StrCat("'", source_path, ".type': this model reads documents of the ",
                                 "types text and content, found ", base::Quote(type)),
                    "unsupported_content");
}

// The text of something that the client has found.
absl::StatusOr<std::string> SearchResultText(const Json& block, std::string_view path) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string title, RequireString(block, "title", path));
  HEDDLE_ASSIGN_OR_RETURN(const std::string source, RequireString(block, "source", path));
  const Json* content = Find(block, "content");
  if (content == nullptr) {
    return FieldError(path, base::StrCat("'", path, ".content' is missing"), kMissing);
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string text,
                          BlocksText(*content, base::StrCat(path, ".content")));
  return base::StrCat(title, "\n", source, "\n", text);
}

// The parts of one message, collected from its blocks.
struct Turn {
  Json text = Json::array();  // content parts
  Json calls = Json::array();
  Json results = Json::array();  // messages of tools
  std::string reasoning;
};

absl::Status AddBlock(const Json& block, std::string_view path, Turn* turn) {
  std::string type = TextOr(block, "type", "");
  if (type == "text") {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, RequireString(block, "text", path));
    turn->text.push_back({{"type", "text"}, {"text", std::move(text)}});
  } else if (type == "document") {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, DocumentText(block, path));
    turn->text.push_back({{"type", "text"}, {"text", std::move(text)}});
  } else if (type == "search_result") {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, SearchResultText(block, path));
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
  } else if (!IsForeignBlock(type)) {
    return WrongBlock(path, type);
  }
  return absl::OkStatus();
}

absl::Status AddMessage(const Json& message, std::string_view path, Json* messages) {
  std::string role = TextOr(message, "role", "");
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
  // Results answer the previous turn, and come before the user's text.
  for (Json& result : turn.results) messages->push_back(std::move(result));
  if (turn.text.empty() && turn.calls.empty() && !turn.results.empty()) return absl::OkStatus();
  Json& added = messages->emplace_back(Json{{"role", role}, {"content", turn.text}});
  if (!turn.calls.empty()) added["tool_calls"] = std::move(turn.calls);
  if (!turn.reasoning.empty()) added["reasoning_content"] = turn.reasoning;
  return absl::OkStatus();
}

absl::Status AddToolChoice(const RequestFields<fields::kMessagesToolChoice>& choice, Json* chat) {
  const std::string* given = choice.Text<"type">();
  const std::string type = given == nullptr ? "" : *given;
  if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    const std::string* name = choice.Text<"name">();
    if (name == nullptr) {
      return FieldError("tool_choice.name", "'tool_choice.name' is missing", kMissing);
    }
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else {
    return FieldError("tool_choice.type",
                      base::StrCat("'tool_choice.type' must be auto, any, tool or none, found ",
                                   base::Quote(type)));
  }
  if (choice.Bool<"disable_parallel_tool_use">(false)) (*chat)["parallel_tool_calls"] = false;
  return absl::OkStatus();
}

// Handles enabled, adaptive and disabled; templates cannot be told how much to think.
absl::Status AddThinking(const RequestFields<fields::kThinking>& thinking, Json* chat) {
  const std::string& type = *thinking.Text<"type">();
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return FieldError("thinking.type",
                      base::StrCat("'thinking.type' must be enabled, adaptive or disabled, found ",
                                   base::Quote(type)));
  }
  (*chat)["enable_thinking"] = type != "disabled";
  return absl::OkStatus();
}

// Handles {"effort", "format": {"type": "json_schema", "schema"}}.
absl::Status AddOutputConfig(const RequestFields<fields::kOutputConfig>& config, Json* chat) {
  if (const std::string* effort = config.Text<"effort">()) (*chat)["reasoning_effort"] = *effort;
  const auto format = config.Object<"format", fields::kOutputFormat>();
  if (!format.has_value()) return absl::OkStatus();
  const std::string& type = *format->Text<"type">();
  if (type != "json_schema") {
    return FieldError(
        "output_config.format.type",
        base::StrCat("'output_config.format.type' must be json_schema, found ", base::Quote(type)));
  }
  Json holder = {{"name", "output"}};
  if (const Json* schema = format->Value<"schema">()) holder["schema"] = *schema;
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(holder)}};
  return absl::OkStatus();
}

using MessagesFields = RequestFields<fields::kMessages>;

// Copies the members that mean the same in a chat request.
void CopySame(const MessagesFields& body, Json* chat) {
  const auto copy = [chat](const char* name, const Json* value) {
    if (value != nullptr) (*chat)[name] = *value;
  };
  copy("model", body.Value<"model">());
  copy("temperature", body.Value<"temperature">());
  copy("top_p", body.Value<"top_p">());
  copy("top_k", body.Value<"top_k">());
  copy("stream", body.Value<"stream">());
  copy("max_tokens", body.Value<"max_tokens">());
  copy("chat_template_kwargs", body.Value<"chat_template_kwargs">());
  copy("lora", body.Value<"lora">());
  copy("cache_salt", body.Value<"cache_salt">());
  copy("stop", body.Value<"stop_sequences">());
}

absl::StatusOr<Json> ChatBody(const MessagesFields& body, std::string* warning) {
  Json chat = Json::object();
  CopySame(body, &chat);
  Json messages = Json::array();
  if (const Json* system = body.Value<"system">()) {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, BlocksText(*system, "system"));
    messages.push_back({{"role", "system"}, {"content", text}});
  }
  const Json& given = *body.Value<"messages">();
  for (size_t i = 0; i < given.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(AddMessage(given[i], base::StrCat("messages[", i, "]"), &messages));
  }
  // An assistant message at the end is to be continued.
  if (TextOr(messages.back(), "role", "") == "assistant" &&
      !messages.back().contains("tool_calls")) {
    chat["continue_final_message"] = true;
  }
  chat["messages"] = std::move(messages);
  if (const Json* tools = body.Value<"tools">()) {
    HEDDLE_RETURN_IF_ERROR(AddMessageTools(*tools, &chat, warning));
  }
  if (const auto choice = body.Object<"tool_choice", fields::kMessagesToolChoice>()) {
    HEDDLE_RETURN_IF_ERROR(AddToolChoice(*choice, &chat));
  }
  if (const auto thinking = body.Object<"thinking", fields::kThinking>()) {
    HEDDLE_RETURN_IF_ERROR(AddThinking(*thinking, &chat));
  }
  if (const auto config = body.Object<"output_config", fields::kOutputConfig>()) {
    HEDDLE_RETURN_IF_ERROR(AddOutputConfig(*config, &chat));
  }
  return chat;
}

// This API's names for fields of the chat request.
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
  HEDDLE_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const MessagesFields fields,
                          CheckBody<fields::kMessages>(body, RefusedMessagesFields(), context));
  if (!fields.Has<"max_tokens">()) {
    return FieldError("max_tokens", "'max_tokens' is missing", kMissing);
  }
  std::string warning;
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(fields, &warning));
  absl::StatusOr<ApiRequest> request = ReadRequest(Endpoint::kChat, chat, context);
  if (!request.ok()) return RenameFields(request.status(), kChatNames);
  request->Warn(warning);
  return request;
}

absl::StatusOr<std::string> CountMessageTokens(std::string_view text,
                                               const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const MessagesFields fields,
                          CheckBody<fields::kMessages>(body, RefusedMessagesFields(), context));
  std::string warning;
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(fields, &warning));
  HEDDLE_ASSIGN_OR_RETURN(const size_t tokens, CountChatTokens(chat, context));
  std::string out;
  JsonWriter(&out).BeginObject().Member("input_tokens", tokens).EndObject();
  return out;
}

}  // namespace heddle::server
