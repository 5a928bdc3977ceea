#include "server/ollama/ollama_request.h"

#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/ollama/ollama_fields.h"
#include "server/ollama/ollama_options.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"
#include "server/request/show_json.h"

namespace heddle::server {
namespace {

using AnswerFields = RequestFields<fields::kOllamaAnswer>;
using GenerateFields = RequestFields<fields::kOllamaGenerate>;

constexpr RefusedField kRefusedGenerateFields[] = {
    {"images", "[]", "this server's models read text only"},
    {"template", R"("")", "the template is the server's (--chat-template)"},
    {"context", "[]", "a conversation is sent to /api/chat"},
};

// Gives the calls of an assistant and the results that follow them ids: Ollama has none, and names
// the tool of a result at most.
class CallIds {
 public:
  void AddCalls(Json* calls) {
    open_.clear();
    for (Json& call : *calls) {
      if (!call.is_object()) continue;
      if (Find(call, "type") == nullptr) call["type"] = "function";
      if (TextOf(Find(call, "id")) == nullptr) call["id"] = base::StrCat("call_", ++count_);
      const Json* function = Find(call, "function");
      open_.push_back(
          {TextOr(call, "id", ""), function == nullptr ? "" : TextOr(*function, "name", "")});
    }
  }

  void AddResult(Json* message) {
    const std::string name = TextOr(*message, "tool_name", TextOr(*message, "name", ""));
    if (!name.empty()) (*message)["name"] = name;
    if (Find(*message, "tool_call_id") != nullptr || open_.empty()) return;
    size_t index = 0;  // without a name, results come in the order of the calls
    for (size_t i = 0; i < open_.size() && !name.empty(); ++i) {
      if (open_[i].name != name) continue;
      index = i;
      break;
    }
    (*message)["tool_call_id"] = open_[index].id;
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(index));
  }

 private:
  struct Call {
    std::string id;
    std::string name;
  };

  std::vector<Call> open_;  // calls of the last assistant that have no result yet
  int count_ = 0;
};

absl::Status NoImages(std::string_view path) {
  return FieldError(path, base::StrCat("'", path, "': this server's models read text only"),
                    "unsupported_content");
}

absl::StatusOr<Json> ChatMessages(const Json& given) {
  Json messages = given;
  CallIds ids;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    if (!message.is_object()) continue;  // refused with its name by NormalizeMessages
    const Json* images = Find(message, "images");
    if (images != nullptr && !images->empty()) {
      return NoImages(base::StrCat("messages[", i, "].images"));
    }
    const bool has_calls = message.contains("tool_calls") && message["tool_calls"].is_array();
    if (has_calls) ids.AddCalls(&message["tool_calls"]);
    if (TextOr(message, "role", "") == "tool") ids.AddResult(&message);
  }
  return messages;
}

absl::Status AddFormat(const AnswerFields& fields, Json* body) {
  const Json* format = fields.Value<"format">();
  if (format == nullptr || *format == "") return absl::OkStatus();
  if (*format == "json") {
    (*body)["response_format"] = {{"type", "json_object"}};
  } else if (format->is_object()) {
    (*body)["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *format}}}};
  } else {
    return FieldError("format", base::StrCat("'format' must be \"json\" or a JSON schema, found ",
                                             ShowJson(*format)));
  }
  return absl::OkStatus();
}

absl::Status AddThinking(const AnswerFields& fields, Json* chat) {
  const Json* think = fields.Value<"think">();
  if (think == nullptr) return absl::OkStatus();
  if (think->is_boolean()) {
    (*chat)["enable_thinking"] = *think;
    return absl::OkStatus();
  }
  if (*think != "low" && *think != "medium" && *think != "high") {
    return FieldError("think", base::StrCat("'think' must be true, false, \"low\", \"medium\" or "
                                            "\"high\", found ",
                                            ShowJson(*think)));
  }
  (*chat)["enable_thinking"] = true;
  (*chat)["reasoning_effort"] = *think;
  return absl::OkStatus();
}

// The fields that a chat and a completion have alike. Returns the warning for the client.
absl::StatusOr<std::string> AddAnswerFields(const AnswerFields& fields,
                                            const RequestContext& context, Json* body) {
  if (const std::string* name = fields.Text<"model">()) {
    (*body)["model"] = WithoutLatest(*name, *context.model);
  }
  (*body)["stream"] = fields.Bool<"stream">(true);
  (*body)["max_tokens"] = -1;
  HEDDLE_RETURN_IF_ERROR(AddFormat(fields, body));
  const auto options = fields.Object<"options", fields::kOllamaOptions>();
  return options.has_value() ? AddOllamaOptions(*options, context, body) : std::string();
}

void AddChatLogprobs(const AnswerFields& fields, Json* chat) {
  if (const Json* logprobs = fields.Value<"logprobs">()) (*chat)["logprobs"] = *logprobs;
  if (const Json* top = fields.Value<"top_logprobs">()) (*chat)["top_logprobs"] = *top;
}

absl::StatusOr<OllamaRequest> Read(Endpoint endpoint, const AnswerFields& fields, const Json& body,
                                   const std::string& warning, const RequestContext& context) {
  OllamaRequest request;
  absl::StatusOr<ApiRequest> api = ReadRequest(endpoint, body, context);
  if (!api.ok()) return InOllamasWords(api.status());
  const std::string* name = fields.Text<"model">();
  if (name != nullptr) api->model.shown = *name;
  api->Warn(warning);
  request.model = api->model.shown;
  request.api = *std::move(api);
  return request;
}

// The answer where there is nothing to answer; checks the model's name.
absl::StatusOr<OllamaRequest> Load(const AnswerFields& fields, const RequestContext& context) {
  OllamaRequest request;
  const std::string* name = fields.Text<"model">();
  std::string known = name == nullptr ? context.model->id : WithoutLatest(*name, *context.model);
  HEDDLE_RETURN_IF_ERROR(ChooseModel(&known, /*lora=*/nullptr, context).status());
  request.model = name == nullptr ? known : *name;
  return request;
}

// A completion, for a prompt that no chat template is put around.
absl::StatusOr<OllamaRequest> Complete(const GenerateFields& fields,
                                       const RequestContext& context) {
  Json body = Json::object();
  HEDDLE_ASSIGN_OR_RETURN(const std::string warning, AddAnswerFields(fields, context, &body));
  const std::string* prompt = fields.Text<"prompt">();
  const std::string* system = fields.Text<"system">();
  std::string text = prompt == nullptr ? "" : *prompt;
  if (system != nullptr && !system->empty() && !fields.Bool<"raw">(false)) {
    text = base::StrCat(*system, "\n\n", text);
  }
  body["prompt"] = text;
  if (const Json* suffix = fields.Value<"suffix">()) body["suffix"] = *suffix;
  if (fields.Bool<"logprobs">(false)) body["logprobs"] = fields.Int<"top_logprobs">(0);
  return Read(Endpoint::kCompletion, fields, body, warning, context);
}

}  // namespace

absl::StatusOr<OllamaRequest> ParseOllamaChat(std::string_view text,
                                              const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kOllamaChat> fields,
                          CheckBody<fields::kOllamaChat>(json, {}, context));
  const Json* given = fields.Value<"messages">();
  if (given == nullptr || given->empty()) return Load(fields, context);
  Json chat = Json::object();
  HEDDLE_ASSIGN_OR_RETURN(const std::string warning, AddAnswerFields(fields, context, &chat));
  HEDDLE_RETURN_IF_ERROR(AddThinking(fields, &chat));
  AddChatLogprobs(fields, &chat);
  HEDDLE_ASSIGN_OR_RETURN(chat["messages"], ChatMessages(*given));
  if (const Json* tools = fields.Value<"tools">()) chat["tools"] = *tools;
  return Read(Endpoint::kChat, fields, chat, warning, context);
}

absl::StatusOr<OllamaRequest> ParseOllamaGenerate(std::string_view text,
                                                  const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const GenerateFields fields, CheckBody<fields::kOllamaGenerate>(
                                                           json, kRefusedGenerateFields, context));
  const std::string* prompt = fields.Text<"prompt">();
  const std::string* suffix = fields.Text<"suffix">();
  const bool fills = suffix != nullptr && !suffix->empty();
  if ((prompt == nullptr || prompt->empty()) && !fills) return Load(fields, context);
  const bool raw = fields.Bool<"raw">(false) || fills || !context.codec->has_chat_template();
  if (raw) return Complete(fields, context);
  Json chat = Json::object();
  HEDDLE_ASSIGN_OR_RETURN(const std::string warning, AddAnswerFields(fields, context, &chat));
  HEDDLE_RETURN_IF_ERROR(AddThinking(fields, &chat));
  AddChatLogprobs(fields, &chat);
  Json messages = Json::array();
  if (const Json* system = fields.Value<"system">()) {
    messages.push_back({{"role", "system"}, {"content", *system}});
  }
  messages.push_back({{"role", "user"}, {"content", *prompt}});
  chat["messages"] = std::move(messages);
  return Read(Endpoint::kChat, fields, chat, warning, context);
}

}  // namespace heddle::server
