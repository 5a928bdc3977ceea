#include "server/openai/response_messages.h"

#include <array>
#include <memory>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/chat_messages.h"
#include "server/openai/client_tools.h"
#include "server/openai/compaction.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// Items of tools that another server ran: they tell this model nothing.
constexpr std::array<std::string_view, 12> kForeignItems = {
    "web_search_call",  "file_search_call",   "code_interpreter_call", "image_generation_call",
    "tool_search_call", "tool_search_output", "mcp_list_tools",        "mcp_approval_request",
    "program",          "program_output",     "mcp_approval_response", "ghost_snapshot"};

// The assistant's turn for calls and reasoning: the last message, or a new one.
Json& AssistantTurn(Json* messages) {
  if (messages->empty() || TextOr(messages->back(), "role", "") != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  return messages->back();
}

void AppendCall(const Json& item, std::string name, std::string arguments, Json* messages) {
  Json& turn = AssistantTurn(messages);
  if (!turn.contains("tool_calls")) turn["tool_calls"] = Json::array();
  turn["tool_calls"].push_back(
      {{"id", TextOr(item, "call_id", TextOr(item, "id", ""))},
       {"type", "function"},
       {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}});
}

absl::StatusOr<std::string> NameOf(const Json& item, std::string_view path) {
  std::string name = TextOr(item, "name", "");
  if (!name.empty()) return name;
  return FieldError(base::StrCat(path, ".name"), base::StrCat("'", path, ".name' is missing"),
                    "missing_required_parameter");
}

// Adds a reasoning item: its own text or, without one, its summary.
void AddReasoning(const Json& item, Json* messages) {
  std::string text;
  for (std::string_view name : {"content", "summary"}) {
    const Json* parts = Find(item, name);
    if (!text.empty() || parts == nullptr || !parts->is_array()) continue;
    for (const Json& part : *parts) text.append(TextOr(part, "text", ""));
  }
  if (text.empty()) return;
  messages->push_back({{"role", "assistant"}, {"content", nullptr}, {"reasoning_content", text}});
}

void AddMessage(const Json& item, Json* messages) {
  const auto member = [&item](const char* name, const char* fallback) {
    const Json* value = Find(item, name);
    if (value != nullptr) return *value;
    return item.contains(name) || fallback == nullptr ? Json(nullptr) : Json(fallback);
  };
  Json message = {{"role", member("role", "user")}, {"content", member("content", nullptr)}};
  // Reasoning and the text after it are one turn.
  const bool continues = TextOr(message, "role", "") == "assistant" && !messages->empty() &&
                         TextOr(messages->back(), "role", "") == "assistant" &&
                         Find(messages->back(), "content") == nullptr;
  if (continues) {
    messages->back()["content"] = std::move(message["content"]);
  } else {
    messages->push_back(std::move(message));
  }
}

void AddOutput(const Json& item, Json* messages) {
  const Json* output = Find(item, "output");
  messages->push_back({{"role", "tool"},
                       {"tool_call_id", TextOr(item, "call_id", TextOr(item, "id", ""))},
                       {"content", output == nullptr ? Json("") : *output}});
}

// The call of a tool that is a function here: its arguments as that function has them.
absl::Status AddSpecialCall(const Json& item, std::string_view type, std::string_view path,
                            Json* messages) {
  if (type == "custom_tool_call") {
    HEDDLE_ASSIGN_OR_RETURN(std::string name, NameOf(item, path));
    const Json arguments = {{"input", TextOr(item, "input", "")}};
    AppendCall(item, std::move(name), arguments.dump(), messages);
    return absl::OkStatus();
  }
  const ClientTool& tool = *FindClientItem(type);
  AppendCall(item, std::string(tool.name), ArgumentsOf(tool, item), messages);
  return absl::OkStatus();
}

// The output of a client's tool: a text, or what is shown to the model as one.
void AddClientOutput(const Json& item, Json* messages) {
  messages->push_back({{"role", "tool"},
                       {"tool_call_id", TextOr(item, "call_id", TextOr(item, "id", ""))},
                       {"content", OutputText(item, Find(item, "output"))}});
}

// A call that another server made and answered.
absl::Status AddAnsweredCall(const Json& item, std::string_view path, Json* messages) {
  HEDDLE_ASSIGN_OR_RETURN(std::string name, NameOf(item, path));
  AppendCall(item, std::move(name), TextOr(item, "arguments", "{}"), messages);
  const Json* output = Find(item, "output");
  if (output == nullptr) output = Find(item, "error");
  messages->push_back({{"role", "tool"},
                       {"tool_call_id", TextOr(item, "call_id", TextOr(item, "id", ""))},
                       {"content", OutputText(item, output)}});
  return absl::OkStatus();
}

// Adds the summary that /v1/responses/compact made of the conversation before.
absl::Status AddSummary(const Json& item, std::string_view path, Json* messages) {
  const absl::StatusOr<std::string> summary = UnpackSummary(TextOr(item, "encrypted_content", ""));
  if (!summary.ok()) {
    const std::string member = base::StrCat(path, ".encrypted_content");
    return FieldError(member, base::StrCat("'", member, "': ", MessageOf(summary.status())),
                      "unsupported_content");
  }
  messages->push_back({{"role", "user"}, {"content", SummaryMessage(*summary)}});
  return absl::OkStatus();
}

bool IsForeign(std::string_view type) {
  for (std::string_view known : kForeignItems) {
    if (known == type) return true;
  }
  return false;
}

absl::Status AddItem(const Json& item, std::string_view path, const ItemSources& sources,
                     bool may_refer, Json* messages);

// The id of the response that an item was part of: "msg_UNIQUE_3" belongs to "resp_UNIQUE".
std::string ResponseOf(std::string_view item_id) {
  const size_t first = item_id.find('_');
  const size_t last = item_id.rfind('_');
  if (first == std::string_view::npos || first == last) return "";
  return base::StrCat("resp_", item_id.substr(first + 1, last - first - 1));
}

// Adds the item of that id, which was the input or the output of a response that is kept.
absl::Status AddReference(const std::string& id, std::string_view path, const ItemSources& sources,
                          Json* messages) {
  if (sources.short_only) return TakesLong();
  const std::shared_ptr<const ResponseStore::Entry> entry =
      sources.store->Get(ResponseOf(id), sources.tenant);
  if (entry != nullptr) {
    for (const ResponseItem& item : entry->items) {
      if (item.id != id) continue;
      return AddItem(Json::parse(item.json), path, sources, /*may_refer=*/false, messages);
    }
    const Json response = Json::parse(entry->body);  // our own text
    const Json* output = Find(response, "output");
    for (size_t i = 0; output != nullptr && i < output->size(); ++i) {
      if (TextOr((*output)[i], "id", "") != id) continue;
      return AddItem((*output)[i], path, sources, /*may_refer=*/false, messages);
    }
  }
  return WithCode(WithParam(absl::NotFoundError(base::StrCat(
                                "there is no item ", base::Quote(id),
                                " (responses are kept in memory, the longest unused goes first)")),
                            base::StrCat(path, ".id")),
                  "item_not_found");
}

absl::Status AddItem(const Json& item, std::string_view path, const ItemSources& sources,
                     bool may_refer, Json* messages) {
  if (!item.is_object()) {
    return FieldError(path, base::StrCat("'", path, "' must be an object, found ", JsonKind(item)),
                      "invalid_type");
  }
  const bool only_id = item.size() == 1 && item.contains("id");
  const std::string type = TextOr(item, "type", only_id ? "item_reference" : "message");
  if (type == "message") {
    AddMessage(item, messages);
  } else if (type == "function_call") {
    HEDDLE_ASSIGN_OR_RETURN(const std::string name, NameOf(item, path));
    AppendCall(item, sources.tools->FunctionOf(name, TextOr(item, "namespace", "")),
               TextOr(item, "arguments", "{}"), messages);
  } else if (type == "reasoning") {
    AddReasoning(item, messages);
  } else if (type == "custom_tool_call" || FindClientItem(type) != nullptr) {
    return AddSpecialCall(item, type, path, messages);
  } else if (type == "shell_call_output" || type == "apply_patch_call_output") {
    AddClientOutput(item, messages);
  } else if (type == "mcp_call") {
    return AddAnsweredCall(item, path, messages);
  } else if (type == "function_call_output" || type == "custom_tool_call_output" ||
             type == "local_shell_call_output") {
    AddOutput(item, messages);
  } else if (type == "compaction" || type == "compaction_summary") {
    return AddSummary(item, path, messages);
  } else if (type == "item_reference" && may_refer) {
    return AddReference(TextOr(item, "id", ""), path, sources, messages);
  } else if (!IsForeign(type)) {
    return FieldError(
        base::StrCat(path, ".type"),
        base::StrCat("'", path,
                     ".type' must be message, reasoning, item_reference, or a call of a ",
                     "tool that the client runs or its output, found ", base::Quote(type)),
        "unsupported_content");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ResponseMessages(const Json& input, Json history, const ItemSources& sources) {
  if (input.is_string()) {
    history.push_back({{"role", "user"}, {"content", input}});
    return history;
  }
  for (size_t i = 0; i < input.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(AddItem(input[i], base::StrCat("input[", i, "]"), sources,
                                   /*may_refer=*/true, &history));
  }
  if (history.size() > kMaxMessages) {
    return FieldError("input", base::StrCat("the conversation must have at most ", kMaxMessages,
                                            " messages, found ", history.size()));
  }
  return history;
}

}  // namespace heddle::server
