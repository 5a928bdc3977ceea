#include "server/openai/responses_request.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/openai/compaction.h"
#include "server/openai/input_items.h"
#include "server/openai/refused_fields.h"
#include "server/openai/request_parts.h"
#include "server/openai/response_messages.h"
#include "server/openai/response_tools.h"
#include "server/request/api_error.h"
#include "server/toolcalls/tool_grammar.h"

namespace heddle::server {
namespace {

constexpr std::string_view kUnsupported = "unsupported_parameter";

using ResponsesFields = RequestFields<fields::kResponses>;

using Kept = std::shared_ptr<const ResponseStore::Entry>;

// The response that this one continues, or nullptr.
absl::StatusOr<Kept> Previous(const ResponsesFields& body, const RequestContext& context,
                              const ResponseStores& stores) {
  const std::string* id = body.Text<"previous_response_id">();
  if (id == nullptr) return nullptr;
  if (context.patience.short_only) return TakesLong();  // it may be much longer than this request
  Kept entry = stores.responses->Get(*id, context.tenant);
  if (entry == nullptr) {
    return WithCode(WithParam(absl::NotFoundError(base::StrCat(
                                  "there is no response ", base::Quote(*id),
                                  " (they are kept in memory, the longest unused goes first)")),
                              "previous_response_id"),
                    "previous_response_not_found");
  }
  return entry;
}

// The conversation that this request adds to, or nullptr.
absl::StatusOr<ConversationStore::Kept> ConversationOf(const ResponsesFields& body,
                                                       const RequestContext& context,
                                                       const ResponseStores& stores) {
  const Json* named = body.Value<"conversation">();
  if (named == nullptr) return nullptr;
  if (body.Has<"previous_response_id">()) {
    return FieldError("conversation",
                      "'conversation' and 'previous_response_id' exclude each other: each is what "
                      "came before");
  }
  if (context.patience.short_only) return TakesLong();  // it may be much longer than this request
  const std::string* text = TextOf(named);
  const std::string id = text != nullptr ? *text : TextOr(*named, "id", "");
  ConversationStore::Kept kept = stores.conversations->Get(id, context.tenant);
  if (kept == nullptr) return WithParam(NoSuchConversation(id), "conversation");
  return kept;
}

// The chat's name of the tool that an entry of "tool_choice" names; empty: it names none.
std::string ChosenFunction(const Json& choice, const ResponseTools& tools) {
  std::string type = TextOr(choice, "type", "");
  if (FindClientTool(type) != nullptr) return type;
  const std::string name = TextOr(choice, "name", "");
  if (name.empty() || (type != "function" && type != "custom")) return "";
  return tools.FunctionOf(name, TextOr(choice, "namespace", ""));
}

Json ChatFunction(std::string name) {
  return {{"type", "function"}, {"function", {{"name", std::move(name)}}}};
}

absl::StatusOr<Json> AllowedTools(const Json& named, const ResponseTools& tools) {
  Json allowed = Json::array();
  for (size_t i = 0; i < named.size(); ++i) {
    std::string name = ChosenFunction(named[i], tools);
    if (name.empty()) {
      const std::string path = base::StrCat("tool_choice.tools[", i, "]");
      return FieldError(path, base::StrCat("'", path, "' must name one of 'tools'"), kUnsupported);
    }
    allowed.push_back(ChatFunction(std::move(name)));
  }
  return allowed;
}

absl::Status CopyToolChoice(const ResponsesFields& body, const ResponseTools& tools, Json* chat) {
  const Json* choice = body.Value<"tool_choice">();
  if (choice == nullptr) return absl::OkStatus();
  if (!choice->is_object()) {
    (*chat)["tool_choice"] = *choice;
    return absl::OkStatus();
  }
  if (TextOr(*choice, "type", "") == "allowed_tools") {
    Json allowed = *choice;
    allowed.erase("type");
    if (const Json* named = Find(*choice, "tools"); named != nullptr && named->is_array()) {
      HEDDLE_ASSIGN_OR_RETURN(allowed["tools"], AllowedTools(*named, tools));
    }
    (*chat)["tool_choice"] = {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
    return absl::OkStatus();
  }
  std::string name = ChosenFunction(*choice, tools);
  if (name.empty()) {
    return FieldError("tool_choice", "'tool_choice' must name a function", kUnsupported);
  }
  (*chat)["tool_choice"] = ChatFunction(std::move(name));
  return absl::OkStatus();
}

// Converts text.format, {"type":"json_schema","name":...,"schema":...}, to the chat form.
absl::Status CopyFormat(const ResponsesFields& body, Json* chat) {
  const auto text = body.Object<"text", fields::kText>();
  const Json* format = text.has_value() ? text->Value<"format">() : nullptr;
  if (format == nullptr) return absl::OkStatus();
  if (TextOr(*format, "type", "") != "json_schema") {
    (*chat)["response_format"] = *format;
    return absl::OkStatus();
  }
  Json schema = *format;
  schema.erase("type");
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  return absl::OkStatus();
}

absl::Status CheckTruncation(const ResponsesFields& body) {
  const std::string* truncation = body.Text<"truncation">();
  if (truncation == nullptr || *truncation == "disabled" || *truncation == "auto") {
    return absl::OkStatus();
  }
  return FieldError("truncation", base::StrCat("'truncation' must be auto or disabled, found ",
                                               base::Quote(*truncation)));
}

absl::Status CheckBackground(const ResponsesFields& body) {
  if (!body.Bool<"background">(false) || body.Bool<"store">(true)) return absl::OkStatus();
  return FieldError("background", "'background' needs 'store': who asks later must find it");
}

bool Includes(const ResponsesFields& body, std::string_view what) {
  const Json* include = body.Value<"include">();
  return include != nullptr &&
         std::find(include->begin(), include->end(), Json(what)) != include->end();
}

// Copies the members that mean the same in a chat request.
void CopySame(const ResponsesFields& body, Json* chat) {
  const auto copy = [chat](const char* name, const Json* value) {
    if (value != nullptr) (*chat)[name] = *value;
  };
  copy("model", body.Value<"model">());
  copy("stream", body.Value<"stream">());
  copy("stop", body.Value<"stop">());
  copy("user", body.Value<"user">());
  copy("parallel_tool_calls", body.Value<"parallel_tool_calls">());
  copy("top_logprobs", body.Value<"top_logprobs">());
  copy("chat_template_kwargs", body.Value<"chat_template_kwargs">());
  copy("lora", body.Value<"lora">());
  copy("cache_salt", body.Value<"cache_salt">());
  copy("max_completion_tokens", body.Value<"max_output_tokens">());
  RequestFields<fields::kSampling>(body).ForEach(
      [chat](std::string_view name, const Json& value) { (*chat)[std::string(name)] = value; });
  if (const auto reasoning = body.Object<"reasoning", fields::kReasoning>()) {
    copy("reasoning_effort", reasoning->Value<"effort">());
  }
}

// The functions of a request's tools, and what they are in the API.
struct ReadTools {
  ResponseTools names;
  Json functions = Json::array();
};

absl::StatusOr<ReadTools> ToolsOf(const ResponsesFields& body) {
  ReadTools read;
  const Json* tools = body.Value<"tools">();
  if (tools == nullptr) return read;
  HEDDLE_ASSIGN_OR_RETURN(read.names, ResponseTools::Read(*tools, "tools", &read.functions));
  return read;
}

absl::StatusOr<Json> ChatBody(const ResponsesFields& body, const ReadTools& tools,
                              const Json& conversation) {
  Json chat = Json::object();
  CopySame(body, &chat);
  if (body.Has<"top_logprobs">() || Includes(body, "message.output_text.logprobs")) {
    chat["logprobs"] = true;
  }
  if (body.Has<"tools">()) chat["tools"] = tools.functions;
  HEDDLE_RETURN_IF_ERROR(CopyToolChoice(body, tools.names, &chat));
  HEDDLE_RETURN_IF_ERROR(CopyFormat(body, &chat));
  // Instructions apply to this response only: they are not part of the stored conversation.
  Json& messages = chat["messages"] = Json::array();
  if (const Json* instructions = body.Value<"instructions">()) {
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  for (const Json& message : conversation) messages.push_back(message);
  return chat;
}

bool IsTooLong(const absl::Status& status) {
  return ToApiError(status).code == "context_length_exceeded";
}

// The members that repeat the request, in the order of the reference.
std::string Echo(const ResponsesFields& body, const ApiRequest& api) {
  Json echo = Json::object();
  const auto copy = [&echo](const char* name, const Json* value, const Json& fallback) {
    echo[name] = value == nullptr ? fallback : *value;
  };
  const engine::SamplingParams& sampling = api.generations.front().sampling;
  if (const Json* conversation = body.Value<"conversation">()) {
    echo["conversation"] = conversation->is_string() ? Json{{"id", *conversation}} : *conversation;
  }
  copy("instructions", body.Value<"instructions">(), nullptr);
  copy("max_output_tokens", body.Value<"max_output_tokens">(), nullptr);
  copy("metadata", body.Value<"metadata">(), Json::object());
  copy("parallel_tool_calls", body.Value<"parallel_tool_calls">(), true);
  copy("previous_response_id", body.Value<"previous_response_id">(), nullptr);
  copy("reasoning", body.Value<"reasoning">(), {{"effort", nullptr}, {"summary", nullptr}});
  copy("service_tier", body.Value<"service_tier">(), "default");
  copy("store", body.Value<"store">(), true);
  copy("temperature", body.Value<"temperature">(), sampling.temperature);
  copy("text", body.Value<"text">(), {{"format", {{"type", "text"}}}});
  copy("tool_choice", body.Value<"tool_choice">(), "auto");
  copy("tools", body.Value<"tools">(), Json::array());
  copy("top_p", body.Value<"top_p">(), sampling.top_p);
  copy("truncation", body.Value<"truncation">(), "disabled");
  copy("user", body.Value<"user">(), nullptr);
  std::string text = echo.dump();
  return text.substr(1, text.size() - 2);
}

// The conversation from message `begin` on, behind its leading system messages.
Json WithoutOldest(const Json& conversation, size_t begin) {
  Json rest = Json::array();
  for (size_t i = 0; i < begin; ++i) {
    const std::string role = TextOr(conversation[i], "role", "");
    if (role != "system" && role != "developer") break;
    rest.push_back(conversation[i]);
  }
  for (size_t i = begin; i < conversation.size(); ++i) rest.push_back(conversation[i]);
  return rest;
}

// Whether an answer fits behind the prompt: the requested length, at most a quarter of the context.
bool HasRoom(const ResponsesFields& body, const ApiRequest& api, const RequestContext& context) {
  const int64_t enough = context.model->max_context / 4;
  const int64_t wanted = std::min(enough, body.Int<"max_output_tokens">(enough));
  return api.generations.front().max_tokens >= wanted;
}

// The request without as many of its oldest turns as needed for it to fit ("truncation": "auto").
// It is cut before a user's message, so that calls and their results stay together. Tries
// log2(turns) prompts.
absl::StatusOr<ApiRequest> ReadNewest(const ResponsesFields& body, const ReadTools& tools,
                                      const Json& conversation, const RequestContext& context,
                                      absl::Status too_long) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < conversation.size(); ++i) {
    if (TextOr(conversation[i], "role", "") == "user") cuts.push_back(i);
  }
  absl::StatusOr<ApiRequest> best = std::move(too_long);
  for (size_t low = 0, high = cuts.size(); low < high;) {
    const size_t middle = low + (high - low) / 2;
    HEDDLE_ASSIGN_OR_RETURN(Json chat,
                            ChatBody(body, tools, WithoutOldest(conversation, cuts[middle])));
    absl::StatusOr<ApiRequest> api = ReadRequest(Endpoint::kChat, chat, context);
    if (!api.ok() && !IsTooLong(api.status())) return api;
    const bool has_room = api.ok() && HasRoom(body, *api, context);
    // A request without room is the best only until one with room is found.
    if (has_room || (api.ok() && high == cuts.size())) best = std::move(api);
    if (has_room) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return best;
}

// This API's names for fields of the chat request, in errors.
constexpr Renamed kChatNames[] = {{"max_completion_tokens", "max_output_tokens"},
                                  {"response_format.json_schema", "text.format"},
                                  {"response_format", "text.format"},
                                  {"reasoning_effort", "reasoning.effort"},
                                  {"tool_choice.function.name", "tool_choice.name"},
                                  {"tool_choice.allowed_tools", "tool_choice"}};

absl::Status InOwnWords(absl::Status status) {
  // An item is not one message, so for messages only the whole can be named.
  const bool of_messages = ToApiError(status).param.starts_with("messages");
  if (of_messages) return WithParam(std::move(status), "input");
  return RenameFields(std::move(status), kChatNames);
}

// A body that is valid by its table, and the chat request made from it.
struct ReadBody {
  std::unique_ptr<const Json> json;  // what `fields` views
  ResponsesFields fields;
  Kept previous;
  ConversationStore::Kept kept;  // the conversation that the request names
  ReadTools tools;
  Json conversation;
  Json chat;
};

// The messages of what came before this request.
absl::StatusOr<Json> History(const Kept& previous, const ConversationStore::Kept& kept,
                             const ItemSources& sources) {
  if (previous != nullptr) return Json::parse(previous->messages);  // our own text
  if (kept == nullptr) return Json::array();
  Json items = Json::array();
  for (const ResponseItem& item : kept->items) items.push_back(Json::parse(item.json));
  return ResponseMessages(items, Json::array(), sources);
}

absl::StatusOr<ReadBody> ReadConversation(Json parsed, const RequestContext& context,
                                          const ResponseStores& stores) {
  auto json = std::make_unique<const Json>(std::move(parsed));
  HEDDLE_ASSIGN_OR_RETURN(const ResponsesFields fields,
                          CheckBody<fields::kResponses>(*json, RefusedResponsesFields(), context));
  HEDDLE_RETURN_IF_ERROR(CheckTruncation(fields));
  HEDDLE_RETURN_IF_ERROR(CheckBackground(fields));
  HEDDLE_ASSIGN_OR_RETURN(ConversationStore::Kept kept, ConversationOf(fields, context, stores));
  HEDDLE_ASSIGN_OR_RETURN(Kept previous, Previous(fields, context, stores));
  HEDDLE_ASSIGN_OR_RETURN(ReadTools tools, ToolsOf(fields));
  const ItemSources sources{&tools.names, stores.responses, context.tenant,
                            context.patience.short_only};
  HEDDLE_ASSIGN_OR_RETURN(Json history, History(previous, kept, sources));
  HEDDLE_ASSIGN_OR_RETURN(Json conversation,
                          ResponseMessages(*fields.Value<"input">(), std::move(history), sources));
  HEDDLE_ASSIGN_OR_RETURN(Json chat, ChatBody(fields, tools, conversation));
  ReadBody read{std::move(json), fields, std::move(previous), std::move(kept), std::move(tools)};
  read.conversation = std::move(conversation);
  read.chat = std::move(chat);
  return read;
}

bool Truncates(const ResponsesFields& body) {
  const std::string* truncation = body.Text<"truncation">();
  return truncation != nullptr && *truncation == "auto";
}

absl::StatusOr<ApiRequest> ReadChat(const ReadBody& read, const RequestContext& around) {
  RequestContext context = around;
  context.text_grammars = &read.tools.names.grammars();
  absl::StatusOr<ApiRequest> api = ReadRequest(Endpoint::kChat, read.chat, context);
  if (!api.ok() && IsTooLong(api.status()) && Truncates(read.fields)) {
    api = ReadNewest(read.fields, read.tools, read.conversation, context, api.status());
  }
  if (!api.ok()) return InOwnWords(api.status());
  return api;
}

// The part of a conversation that is cut off depends on more than its tokens.
absl::StatusOr<size_t> CountTokens(const ReadBody& read, const RequestContext& context) {
  if (Truncates(read.fields)) {
    HEDDLE_ASSIGN_OR_RETURN(const ApiRequest api, ReadChat(read, context));
    return api.generations.front().prompt.size();
  }
  absl::StatusOr<size_t> tokens = CountChatTokens(read.chat, context);
  if (!tokens.ok()) return InOwnWords(tokens.status());
  return tokens;
}

// The items of the request, behind those of what came before it.
ResponseItems ItemsOf(const ReadBody& read, std::string_view unique) {
  const Json& input = *read.fields.Value<"input">();
  if (read.kept == nullptr) return InputItems(input, unique, read.previous.get());
  const ResponseStore::Entry before{.body = "{}", .items = read.kept->items};
  return InputItems(input, unique, &before);
}

// A request whose answer is a summary of the conversation that `compact` gives.
Json SummaryRequest(const Json& compact, const RequestContext& context) {
  Json request = Json::object();
  for (const char* name : {"model", "instructions", "previous_response_id", "conversation", "lora",
                           "cache_salt", "chat_template_kwargs", "reasoning"}) {
    if (const Json* value = Find(compact, name)) request[name] = *value;
  }
  Json& input = request["input"] = Json::array();
  if (const Json* given = Find(compact, "input")) {
    if (given->is_string()) {
      input.push_back({{"role", "user"}, {"content", *given}});
    } else {
      input = *given;
    }
  }
  input.push_back({{"role", "user"}, {"content", SummaryInstruction()}});
  request["truncation"] = "auto";
  request["max_output_tokens"] = std::max(1, context.model->max_context / 4);
  return request;
}

bool IsUserMessage(const ResponseItem& item) {
  const Json json = Json::parse(item.json);  // our own text
  return TextOr(json, "type", "") == "message" && TextOr(json, "role", "") == "user";
}

}  // namespace

absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view text,
                                                       const RequestContext& context,
                                                       const ResponseStores& stores,
                                                       std::string_view unique) {
  HEDDLE_ASSIGN_OR_RETURN(Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(ReadBody read, ReadConversation(std::move(json), context, stores));
  ResponsesRequest request;
  HEDDLE_ASSIGN_OR_RETURN(request.api, ReadChat(read, context));
  request.api.Warn(read.tools.names.warning());
  const ToolSyntax* syntax = context.codec->syntax().tools;
  if (!read.tools.names.grammars().empty() && (syntax == nullptr || !HasCallGrammar(*syntax))) {
    request.api.Warn(
        "the grammars of custom tools are shown to the model, and not enforced: this "
        "model's calls are written in a format that is not known");
  }
  request.echo = Echo(read.fields, request.api);
  request.messages = read.conversation.dump();
  request.store = read.fields.Bool<"store">(true);
  request.background = read.fields.Bool<"background">(false);
  request.tools = std::move(read.tools.names);
  if (read.kept != nullptr) {
    request.conversation = read.kept->id;
    request.first_new_item = read.kept->items.size();
  }
  if (request.store || read.kept != nullptr) request.items = ItemsOf(read, unique);
  return request;
}

absl::StatusOr<std::string> CountResponseTokens(std::string_view text,
                                                const RequestContext& context,
                                                const ResponseStores& stores) {
  HEDDLE_ASSIGN_OR_RETURN(Json parsed, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const ReadBody read,
                          ReadConversation(std::move(parsed), context, stores));
  HEDDLE_ASSIGN_OR_RETURN(const size_t tokens, CountTokens(read, context));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "response.input_tokens");
  json.Member("input_tokens", tokens).EndObject();
  return out;
}

absl::StatusOr<CompactionRequest> ParseCompactionRequest(std::string_view text,
                                                         const RequestContext& context,
                                                         const ResponseStores& stores,
                                                         std::string_view unique) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const auto fields, CheckBody<fields::kCompact>(json, {}, context));
  if (!fields.Has<"input">() && !fields.Has<"previous_response_id">()) {
    return FieldError("input", "'input' or 'previous_response_id' must be there",
                      "missing_required_parameter");
  }
  HEDDLE_ASSIGN_OR_RETURN(const ReadBody read,
                          ReadConversation(SummaryRequest(json, context), context, stores));
  CompactionRequest request;
  HEDDLE_ASSIGN_OR_RETURN(request.api, ReadChat(read, context));
  ResponseItems items = ItemsOf(read, unique);
  items.pop_back();  // our instruction
  for (ResponseItem& item : items) {
    if (IsUserMessage(item)) request.users.push_back(std::move(item));
  }
  return request;
}

}  // namespace heddle::server
