#include "server/openai/responses_request.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_error.h"
#include "server/openai/chat_messages.h"
#include "server/openai/fields.h"
#include "server/openai/input_items.h"
#include "server/openai/request_parts.h"

namespace heddle::server {
namespace {

constexpr std::string_view kUnsupported = "unsupported_parameter";

std::string StringOr(const Json& object, std::string_view name, std::string_view fallback) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string(fallback);
}

// The assistant's turn that calls and reasoning belong to: the last message, or a new one.
Json& AssistantTurn(Json* messages) {
  if (messages->empty() || messages->back()["role"] != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  return messages->back();
}

absl::Status AddCall(const Json& item, std::string_view path, Json* messages) {
  std::string name = StringOr(item, "name", "");
  if (name.empty()) {
    return FieldError(base::StrCat(path, ".name"), base::StrCat("'", path, ".name' is missing"),
                      "missing_required_parameter");
  }
  Json& turn = AssistantTurn(messages);
  if (!turn.contains("tool_calls")) turn["tool_calls"] = Json::array();
  turn["tool_calls"].push_back(
      {{"id", StringOr(item, "call_id", StringOr(item, "id", ""))},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", StringOr(item, "arguments", "{}")}}}});
  return absl::OkStatus();
}

// A reasoning item: its own text, or where there is none its summary.
void AddReasoning(const Json& item, Json* messages) {
  std::string text;
  for (std::string_view name : {"content", "summary"}) {
    const Json* parts = Find(item, name);
    if (!text.empty() || parts == nullptr || !parts->is_array()) continue;
    for (const Json& part : *parts) {
      if (part.is_object()) text.append(StringOr(part, "text", ""));
    }
  }
  if (text.empty()) return;
  messages->push_back({{"role", "assistant"}, {"content", nullptr}, {"reasoning_content", text}});
}

absl::Status AddMessage(const Json& item, Json* messages) {
  Json message = Json::object();
  message["role"] = item.contains("role") ? item["role"] : Json("user");
  message["content"] = item.contains("content") ? item["content"] : Json(nullptr);
  // Reasoning and what was said after it are one turn.
  bool continues = message["role"] == "assistant" && !messages->empty() &&
                   messages->back()["role"] == "assistant" && messages->back()["content"].is_null();
  if (continues) {
    messages->back()["content"] = message["content"];
  } else {
    messages->push_back(std::move(message));
  }
  return absl::OkStatus();
}

absl::Status AddItem(const Json& item, std::string_view path, Json* messages) {
  if (!item.is_object()) {
    return FieldError(path, base::StrCat("'", path, "' must be an object, found ", JsonKind(item)),
                      "invalid_type");
  }
  std::string type = StringOr(item, "type", "message");
  if (type == "message") return AddMessage(item, messages);
  if (type == "function_call") return AddCall(item, path, messages);
  if (type == "reasoning") {
    AddReasoning(item, messages);
    return absl::OkStatus();
  }
  if (type == "function_call_output") {
    const Json* output = Find(item, "output");
    messages->push_back({{"role", "tool"},
                         {"tool_call_id", StringOr(item, "call_id", "")},
                         {"content", output == nullptr ? Json("") : *output}});
    return absl::OkStatus();
  }
  return FieldError(base::StrCat(path, ".type"),
                    base::StrCat("'", path,
                                 ".type' must be message, function_call, "
                                 "function_call_output or reasoning, found ",
                                 base::Quote(type)),
                    "unsupported_content");
}

using Kept = std::shared_ptr<const ResponseStore::Entry>;

// The response that this one goes on from; nullptr: none.
absl::StatusOr<Kept> Previous(const Json& body, const RequestContext& context,
                              ResponseStore* store) {
  const Json* previous = Find(body, "previous_response_id");
  if (previous == nullptr) return nullptr;
  if (context.quick) return TakesLong();  // it may be much longer than this request
  const auto& id = previous->get_ref<const std::string&>();
  Kept entry = store->Get(id, context.tenant);
  if (entry == nullptr) {
    return WithCode(WithParam(absl::NotFoundError(base::StrCat(
                                  "there is no response ", base::Quote(id),
                                  " (they are kept in memory, the longest unused goes first)")),
                              "previous_response_id"),
                    "previous_response_not_found");
  }
  return entry;
}

absl::StatusOr<Json> Messages(const Json& body, Json history) {
  const Json* input = Find(body, "input");
  if (input == nullptr) {
    return FieldError("input", "'input' is missing", "missing_required_parameter");
  }
  if (input->is_string()) {
    history.push_back({{"role", "user"}, {"content", *input}});
    return history;
  }
  for (size_t i = 0; i < input->size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(AddItem((*input)[i], base::StrCat("input[", i, "]"), &history));
  }
  if (history.size() > kMaxMessages) {
    return FieldError("input", base::StrCat("the conversation must have at most ", kMaxMessages,
                                            " messages, found ", history.size()));
  }
  return history;
}

// {"type":"function","name":...} to {"type":"function","function":{"name":...}}.
absl::StatusOr<Json> ChatTools(const Json& tools, std::string_view array_path) {
  Json converted = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    std::string path = base::StrCat(array_path, "[", i, "]");
    std::string type = tools[i].is_object() ? StringOr(tools[i], "type", "") : "";
    if (type != "function") {
      return FieldError(base::StrCat(path, ".type"),
                        base::StrCat("'", path, ".type' must be 'function', found ",
                                     base::Quote(type), ": this server has no tools of its own"),
                        kUnsupported);
    }
    Json function = tools[i];
    function.erase("type");
    converted.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return converted;
}

absl::Status CopyToolChoice(const Json& body, Json* chat) {
  const Json* choice = Find(body, "tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  if (!choice->is_object()) {
    (*chat)["tool_choice"] = *choice;
    return absl::OkStatus();
  }
  if (StringOr(*choice, "type", "") == "allowed_tools") {
    Json allowed = *choice;
    allowed.erase("type");
    if (const Json* tools = Find(*choice, "tools"); tools != nullptr && tools->is_array()) {
      HEDDLE_ASSIGN_OR_RETURN(allowed["tools"], ChatTools(*tools, "tool_choice.tools"));
    }
    (*chat)["tool_choice"] = {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
    return absl::OkStatus();
  }
  std::string name = StringOr(*choice, "name", "");
  if (StringOr(*choice, "type", "") != "function" || name.empty()) {
    return FieldError("tool_choice", "'tool_choice' must name a function", kUnsupported);
  }
  (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  return absl::OkStatus();
}

// text.format: {"type":"json_schema","name":...,"schema":...} to the chat form.
absl::Status CopyFormat(const Json& body, Json* chat) {
  const Json* text = Find(body, "text");
  const Json* format = text == nullptr ? nullptr : Find(*text, "format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) {
    return FieldError("text.format",
                      base::StrCat("'text.format' must be an object, found ", JsonKind(*format)),
                      "invalid_type");
  }
  if (StringOr(*format, "type", "") != "json_schema") {
    (*chat)["response_format"] = *format;
    return absl::OkStatus();
  }
  Json schema = *format;
  schema.erase("type");
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  return absl::OkStatus();
}

absl::Status CheckTruncation(const Json& body) {
  const Json* truncation = Find(body, "truncation");
  if (truncation == nullptr || *truncation == "disabled" || *truncation == "auto") {
    return absl::OkStatus();
  }
  return FieldError("truncation", base::StrCat("'truncation' must be auto or disabled, found ",
                                               base::Quote(truncation->get<std::string>())));
}

bool Includes(const Json& body, std::string_view what) {
  const Json* include = Find(body, "include");
  return include != nullptr &&
         std::find(include->begin(), include->end(), Json(what)) != include->end();
}

absl::StatusOr<Json> ChatBody(const Json& body, const Json& conversation) {
  Json chat = Json::object();
  for (std::string_view name :
       {"model", "temperature", "top_p", "stream", "user", "parallel_tool_calls", "top_logprobs",
        "chat_template_kwargs", "cache_salt"}) {
    if (const Json* value = Find(body, name)) chat[std::string(name)] = *value;
  }
  if (chat.contains("top_logprobs") || Includes(body, "message.output_text.logprobs")) {
    chat["logprobs"] = true;
  }
  if (const Json* limit = Find(body, "max_output_tokens")) chat["max_completion_tokens"] = *limit;
  if (const Json* reasoning = Find(body, "reasoning")) {
    if (const Json* effort = Find(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
  }
  if (const Json* tools = Find(body, "tools")) {
    HEDDLE_ASSIGN_OR_RETURN(chat["tools"], ChatTools(*tools, "tools"));
  }
  HEDDLE_RETURN_IF_ERROR(CopyToolChoice(body, &chat));
  HEDDLE_RETURN_IF_ERROR(CopyFormat(body, &chat));
  // Instructions hold for this response only: they are no part of the conversation that is kept.
  Json& messages = chat["messages"] = Json::array();
  if (const Json* instructions = Find(body, "instructions")) {
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  for (const Json& message : conversation) messages.push_back(message);
  return chat;
}

bool IsTooLong(const absl::Status& status) {
  return ToApiError(status).code == "context_length_exceeded";
}

// The members that repeat the request, in the order of the reference.
std::string Echo(const Json& body, const ApiRequest& api) {
  Json echo = Json::object();
  auto copy = [&](const char* name, const Json& fallback) {
    const Json* value = Find(body, name);
    echo[name] = value == nullptr ? fallback : *value;
  };
  const engine::SamplingParams& sampling = api.generations.front().sampling;
  copy("instructions", nullptr);
  copy("max_output_tokens", nullptr);
  copy("metadata", Json::object());
  copy("parallel_tool_calls", true);
  copy("previous_response_id", nullptr);
  copy("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  copy("service_tier", "default");
  copy("store", true);
  copy("temperature", sampling.temperature);
  copy("text", {{"format", {{"type", "text"}}}});
  copy("tool_choice", "auto");
  copy("tools", Json::array());
  copy("top_p", sampling.top_p);
  copy("truncation", "disabled");
  copy("user", nullptr);
  std::string text = echo.dump();
  return text.substr(1, text.size() - 2);
}

// The conversation from message `begin` on, behind the system messages that it opens with.
Json WithoutOldest(const Json& conversation, size_t begin) {
  Json rest = Json::array();
  for (size_t i = 0; i < begin; ++i) {
    const Json& role = conversation[i]["role"];
    if (role != "system" && role != "developer") break;
    rest.push_back(conversation[i]);
  }
  for (size_t i = begin; i < conversation.size(); ++i) rest.push_back(conversation[i]);
  return rest;
}

// Whether an answer of some length fits behind the prompt: what was asked for, at most a quarter of
// the context.
bool HasRoom(const Json& body, const ApiRequest& api, const RequestContext& context) {
  const int64_t enough = context.model->max_context / 4;
  const int64_t wanted = std::min(enough, GetInt(body, "max_output_tokens", enough));
  return api.generations.front().max_tokens >= wanted;
}

// The request without so many of its oldest turns that it fits ("truncation": "auto"). It is cut
// where a user speaks, so that calls and their results stay together. Tries log2(turns) prompts.
absl::StatusOr<ApiRequest> ReadNewest(const Json& body, const Json& conversation,
                                      const RequestContext& context, absl::Status too_long) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < conversation.size(); ++i) {
    if (conversation[i]["role"] == "user") cuts.push_back(i);
  }
  absl::StatusOr<ApiRequest> best = std::move(too_long);
  for (size_t low = 0, high = cuts.size(); low < high;) {
    const size_t middle = low + (high - low) / 2;
    HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(body, WithoutOldest(conversation, cuts[middle])));
    absl::StatusOr<ApiRequest> api = ReadRequest(Endpoint::kChat, chat, context);
    if (!api.ok() && !IsTooLong(api.status())) return api;
    const bool has_room = api.ok() && HasRoom(body, *api, context);
    // One without room is the best only until there is one with it.
    if (has_room || (api.ok() && high == cuts.size())) best = std::move(api);
    if (has_room) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return best;
}

// Names of the chat request, in errors, as this request has them.
constexpr Renamed kChatNames[] = {{"max_completion_tokens", "max_output_tokens"},
                                  {"response_format.json_schema", "text.format"},
                                  {"response_format", "text.format"},
                                  {"reasoning_effort", "reasoning.effort"},
                                  {"tool_choice.function.name", "tool_choice.name"},
                                  {"tool_choice.allowed_tools", "tool_choice"}};

absl::Status InOwnWords(absl::Status status) {
  // One item is not one message: of those only the whole can be named.
  const bool of_messages = ToApiError(status).param.starts_with("messages");
  if (of_messages) return WithParam(std::move(status), "input");
  return RenameFields(std::move(status), kChatNames);
}

// A body that is all right by its table, and what the model is asked by it.
struct ReadBody {
  Json body;
  Kept previous;
  Json conversation;
  Json chat;
};

absl::StatusOr<ReadBody> ReadConversation(std::string_view text, const RequestContext& context,
                                          ResponseStore* store) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckBody(body, ResponsesFields(), RefusedResponsesFields(), context));
  HEDDLE_RETURN_IF_ERROR(CheckTruncation(body));
  HEDDLE_ASSIGN_OR_RETURN(Kept previous, Previous(body, context, store));
  Json history = Json::array();
  if (previous != nullptr) history = Json::parse(previous->messages);  // our own text
  HEDDLE_ASSIGN_OR_RETURN(Json conversation, Messages(body, std::move(history)));
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(body, conversation));
  return ReadBody{std::move(body), std::move(previous), std::move(conversation), std::move(chat)};
}

bool Truncates(const Json& body) {
  const Json* truncation = Find(body, "truncation");
  return truncation != nullptr && *truncation == "auto";
}

absl::StatusOr<ApiRequest> ReadChat(const ReadBody& read, const RequestContext& context) {
  absl::StatusOr<ApiRequest> api = ReadRequest(Endpoint::kChat, read.chat, context);
  if (!api.ok() && IsTooLong(api.status()) && Truncates(read.body)) {
    api = ReadNewest(read.body, read.conversation, context, api.status());
  }
  if (!api.ok()) return InOwnWords(api.status());
  return api;
}

// What is left out of a conversation that is too long depends on more than its tokens.
absl::StatusOr<size_t> CountTokens(const ReadBody& read, const RequestContext& context) {
  if (Truncates(read.body)) {
    HEDDLE_ASSIGN_OR_RETURN(const ApiRequest api, ReadChat(read, context));
    return api.generations.front().prompt.size();
  }
  absl::StatusOr<size_t> tokens = CountChatTokens(read.chat, context);
  if (!tokens.ok()) return InOwnWords(tokens.status());
  return tokens;
}

}  // namespace

absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view text,
                                                       const RequestContext& context,
                                                       ResponseStore* store,
                                                       std::string_view unique) {
  HEDDLE_ASSIGN_OR_RETURN(const ReadBody read, ReadConversation(text, context, store));
  ResponsesRequest request;
  HEDDLE_ASSIGN_OR_RETURN(request.api, ReadChat(read, context));
  request.echo = Echo(read.body, request.api);
  request.messages = read.conversation.dump();
  request.store = GetBool(read.body, "store", true);
  if (request.store) {
    request.items = InputItems(*Find(read.body, "input"), unique, read.previous.get());
  }
  return request;
}

absl::StatusOr<std::string> CountResponseTokens(std::string_view text,
                                                const RequestContext& context,
                                                ResponseStore* store) {
  HEDDLE_ASSIGN_OR_RETURN(const ReadBody read, ReadConversation(text, context, store));
  HEDDLE_ASSIGN_OR_RETURN(const size_t tokens, CountTokens(read, context));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "response.input_tokens");
  json.Member("input_tokens", tokens).EndObject();
  return out;
}

}  // namespace heddle::server
