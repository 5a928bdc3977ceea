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
    text.append(StringOr(content[i], "text", ""));
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
    turn->text.push_back({{"type", "text"}, {"text", StringOr(block, "text", "")}});
  } else if (type == "thinking") {
    turn->reasoning.append(StringOr(block, "thinking", ""));
  } else if (type == "tool_use") {
    const Json* input = Find(block, "input");
    turn->calls.push_back({{"id", StringOr(block, "id", "")},
                           {"type", "function"},
                           {"function",
                            {{"name", StringOr(block, "name", "")},
                             {"arguments", input == nullptr ? Json::object() : *input}}}});
  } else if (type == "tool_result") {
    const Json* content = Find(block, "content");
    std::string text;
    if (content != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(text, BlocksText(*content, base::StrCat(path, ".content")));
    }
    turn->results.push_back({{"role", "tool"},
                             {"tool_call_id", StringOr(block, "tool_use_id", "")},
                             {"content", text}});
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
  if (content == nullptr || content->is_string()) {
    messages->push_back({{"role", role}, {"content", content == nullptr ? Json("") : *content}});
    return absl::OkStatus();
  }
  std::string content_path = base::StrCat(path, ".content");
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
    (*chat)["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", StringOr(choice, "name", "")}}}};
  } else {
    return FieldError("tool_choice.type",
                      base::StrCat("'tool_choice.type' must be auto, any, tool or none, found ",
                                   base::Quote(type)));
  }
  const Json* single = Find(choice, "disable_parallel_tool_use");
  if (single != nullptr && *single == true) (*chat)["parallel_tool_calls"] = false;
  return absl::OkStatus();
}

absl::StatusOr<Json> ChatBody(const Json& body) {
  Json chat = Json::object();
  for (std::string_view name :
       {"model", "temperature", "top_p", "top_k", "stream", "max_tokens", "chat_template_kwargs"}) {
    if (const Json* value = Find(body, name)) chat[std::string(name)] = *value;
  }
  if (const Json* stop = Find(body, "stop_sequences")) chat["stop"] = *stop;
  Json& messages = chat["messages"] = Json::array();
  if (const Json* system = Find(body, "system")) {
    HEDDLE_ASSIGN_OR_RETURN(std::string text, BlocksText(*system, "system"));
    messages.push_back({{"role", "system"}, {"content", text}});
  }
  const Json* given = Find(body, "messages");
  if (given == nullptr) {
    return FieldError("messages", "'messages' is missing", "missing_required_parameter");
  }
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
    chat["enable_thinking"] = StringOr(*thinking, "type", "") != "disabled";
  }
  return chat;
}

}  // namespace

absl::StatusOr<ApiRequest> ParseMessagesRequest(std::string_view text,
                                                const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckFields(body, MessagesFields()));
  if (Find(body, "max_tokens") == nullptr) {
    return FieldError("max_tokens", "'max_tokens' is missing", "missing_required_parameter");
  }
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(body));
  return ReadRequest(Endpoint::kChat, chat, context);
}

absl::StatusOr<std::string> CountMessageTokens(std::string_view text,
                                               const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckFields(body, MessagesFields()));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, *context.model));
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(body));
  HEDDLE_RETURN_IF_ERROR(CheckFields(chat, ChatFields()));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, EncodeMessages(chat, *context.codec));
  std::string out;
  JsonWriter(&out).BeginObject().Member("input_tokens", tokens.size()).EndObject();
  return out;
}

}  // namespace heddle::server
