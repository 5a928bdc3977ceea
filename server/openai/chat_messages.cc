#include "server/openai/chat_messages.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

absl::Status WrongType(std::string_view path, std::string_view expected, const Json& found) {
  return FieldError(path,
                    base::StrCat("'", path, "' must be ", expected, ", found ", JsonKind(found)),
                    "invalid_type");
}

// The result views `object`.
absl::StatusOr<std::string_view> RequireString(const Json& object, std::string_view name,
                                               std::string_view path) {
  const Json* value = Find(object, name);
  std::string full = base::StrCat(path, ".", name);
  if (value == nullptr) {
    return FieldError(full, base::StrCat("'", full, "' is missing"), "missing_required_parameter");
  }
  const std::string* text = TextOf(value);
  if (text == nullptr) return WrongType(full, "a string", *value);
  return std::string_view(*text);
}

// Checks a member that may be missing.
absl::Status CheckString(const Json& object, std::string_view name, std::string_view path) {
  const Json* value = Find(object, name);
  if (value == nullptr || value->is_string()) return absl::OkStatus();
  return WrongType(base::StrCat(path, ".", name), "a string", *value);
}

// The text of one content part.
absl::StatusOr<std::string_view> PartText(const Json& part, std::string_view path) {
  if (const std::string* text = TextOf(&part)) return std::string_view(*text);
  if (!part.is_object()) return WrongType(path, "an object", part);
  HEDDLE_ASSIGN_OR_RETURN(std::string_view type, RequireString(part, "type", path));
  if (type == "text" || type == "input_text" || type == "output_text") {
    return RequireString(part, "text", path);
  }
  if (type == "refusal") return RequireString(part, "refusal", path);
  return FieldError(
      base::StrCat(path, ".type"),
      base::StrCat("the model takes text only, found a part of type ", base::Quote(type)),
      "unsupported_content");
}

absl::StatusOr<std::string> JoinParts(const Json& parts, std::string_view path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    HEDDLE_ASSIGN_OR_RETURN(std::string_view part,
                            PartText(parts[i], base::StrCat(path, "[", i, "]")));
    if (i > 0) text.push_back('\n');
    text.append(part);
  }
  return text;
}

absl::StatusOr<std::string> ContentText(const Json& message, std::string_view role,
                                        std::string_view path) {
  const Json* content = Find(message, "content");
  std::string full = base::StrCat(path, ".content");
  if (content == nullptr) {
    if (role == "assistant") return std::string();
    return FieldError(full,
                      base::StrCat("'", full, "' is missing; only an assistant's may be null"),
                      "missing_required_parameter");
  }
  if (const std::string* text = TextOf(content)) return *text;
  if (content->is_array()) return JoinParts(*content, full);
  return WrongType(full, "a string or an array of parts", *content);
}

// Templates print arguments with tojson, which would escape the quotes of a string.
absl::Status NormalizeToolCall(Json* call, std::string_view path) {
  if (!call->is_object()) return WrongType(path, "an object", *call);
  auto function = call->find("function");
  if (function == call->end() || !function->is_object()) {
    return FieldError(base::StrCat(path, ".function"),
                      base::StrCat("'", path, ".function' must be an object"), "invalid_type");
  }
  std::string function_path = base::StrCat(path, ".function");
  HEDDLE_RETURN_IF_ERROR(RequireString(*function, "name", function_path).status());
  HEDDLE_RETURN_IF_ERROR(CheckString(*call, "id", path));
  auto arguments = function->find("arguments");
  if (arguments == function->end()) return absl::OkStatus();
  if (!arguments->is_string() && !arguments->is_object() && !arguments->is_null()) {
    return WrongType(base::StrCat(function_path, ".arguments"), "a string", *arguments);
  }
  const std::string* text = TextOf(&*arguments);
  if (text == nullptr) return absl::OkStatus();
  absl::StatusOr<Json> object = ParseJsonObject(*text);
  if (object.ok()) *arguments = *std::move(object);
  return absl::OkStatus();
}

// Converts the forms from before tools: an assistant's one function_call, and the role function for
// its result. Templates know the newer ones.
absl::Status ModernizeFunctions(Json* message, std::string_view path) {
  if ((*message)["role"] == "function") {
    (*message)["role"] = "tool";
    const Json* name = Find(*message, "name");
    if (Find(*message, "tool_call_id") == nullptr && name != nullptr) {
      Json id = *name;
      (*message)["tool_call_id"] = std::move(id);
    }
    return absl::OkStatus();
  }
  const Json* call = Find(*message, "function_call");
  if (call == nullptr || Find(*message, "tool_calls") != nullptr) return absl::OkStatus();
  const std::string call_path = base::StrCat(path, ".function_call");
  if (!call->is_object()) return WrongType(call_path, "an object", *call);
  HEDDLE_ASSIGN_OR_RETURN(std::string_view name, RequireString(*call, "name", call_path));
  Json calls =
      Json::array({{{"id", std::string(name)}, {"type", "function"}, {"function", *call}}});
  message->erase("function_call");
  (*message)["tool_calls"] = std::move(calls);
  return absl::OkStatus();
}

absl::Status NormalizeToolCalls(Json* message, std::string_view path) {
  auto calls = message->find("tool_calls");
  if (calls == message->end()) return absl::OkStatus();
  // Templates test `if message.tool_calls`, so an empty list is removed.
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message->erase(calls);
    return absl::OkStatus();
  }
  std::string calls_path = base::StrCat(path, ".tool_calls");
  if (!calls->is_array()) return WrongType(calls_path, "an array", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(NormalizeToolCall(&(*calls)[i], base::StrCat(calls_path, "[", i, "]")));
  }
  return absl::OkStatus();
}

// Templates read an earlier turn's reasoning under one of these names, and clients send it under
// one.
absl::Status NormalizeReasoning(Json* message, std::string_view path) {
  constexpr std::array<std::string_view, 3> kNames = {"reasoning_content", "reasoning", "thinking"};
  std::string text;
  for (std::string_view name : kNames) {
    const Json* value = Find(*message, name);
    if (value == nullptr) continue;
    const std::string* given = TextOf(value);
    if (given == nullptr) return WrongType(base::StrCat(path, ".", name), "a string", *value);
    if (text.empty()) text = *given;
  }
  for (std::string_view name : kNames) {
    if (text.empty()) {
      message->erase(std::string(name));
    } else {
      (*message)[std::string(name)] = text;
    }
  }
  return absl::OkStatus();
}

absl::Status NormalizeMessage(Json* message, std::string_view path) {
  if (!message->is_object()) return WrongType(path, "an object", *message);
  HEDDLE_ASSIGN_OR_RETURN(std::string_view role, RequireString(*message, "role", path));
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return FieldError(base::StrCat(path, ".role"),
                      base::StrCat("'", path,
                                   ".role' must be system, developer, user, assistant or tool, "
                                   "found ",
                                   base::Quote(role)));
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string content, ContentText(*message, role, path));
  if (role == "developer") (*message)["role"] = "system";
  (*message)["content"] = std::move(content);  // may move the members that `role` views
  HEDDLE_RETURN_IF_ERROR(CheckString(*message, "name", path));
  HEDDLE_RETURN_IF_ERROR(CheckString(*message, "tool_call_id", path));
  HEDDLE_RETURN_IF_ERROR(ModernizeFunctions(message, path));
  if ((*message)["role"] == "assistant") {
    HEDDLE_RETURN_IF_ERROR(NormalizeReasoning(message, path));
  }
  return NormalizeToolCalls(message, path);
}

}  // namespace

absl::StatusOr<Json> NormalizeMessages(const Json& messages) {
  if (messages.size() > kMaxMessages) {
    return FieldError("messages", base::StrCat("'messages' must have at most ", kMaxMessages,
                                               " entries, found ", messages.size()));
  }
  Json normalized = messages;
  for (size_t i = 0; i < normalized.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(NormalizeMessage(&normalized[i], base::StrCat("messages[", i, "]")));
  }
  return normalized;
}

absl::Status CheckTools(const Json& tools, std::string_view array_path) {
  for (size_t i = 0; i < tools.size(); ++i) {
    std::string path = base::StrCat(array_path, "[", i, "]");
    if (!tools[i].is_object()) return WrongType(path, "an object", tools[i]);
    HEDDLE_ASSIGN_OR_RETURN(std::string_view type, RequireString(tools[i], "type", path));
    if (type != "function") {
      return FieldError(
          base::StrCat(path, ".type"),
          base::StrCat("'", path, ".type' must be 'function', found ", base::Quote(type)));
    }
    const Json* function = Find(tools[i], "function");
    std::string function_path = base::StrCat(path, ".function");
    if (function == nullptr || !function->is_object()) {
      return FieldError(function_path, base::StrCat("'", function_path, "' must be an object"),
                        "invalid_type");
    }
    HEDDLE_ASSIGN_OR_RETURN(std::string_view name, RequireString(*function, "name", function_path));
    if (name.empty()) {
      return FieldError(base::StrCat(function_path, ".name"),
                        base::StrCat("'", function_path, ".name' must not be empty"));
    }
    HEDDLE_RETURN_IF_ERROR(CheckString(*function, "description", function_path));
    const Json* strict = Find(*function, "strict");
    if (strict != nullptr && !strict->is_boolean()) {
      return WrongType(base::StrCat(function_path, ".strict"), "a boolean", *strict);
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
