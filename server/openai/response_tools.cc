#include "server/openai/response_tools.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// Tools that the provider of a model would run.
constexpr std::array<std::string_view, 12> kHostedTools = {
    "web_search",           "web_search_2025_08_26",
    "web_search_preview",   "web_search_preview_2025_03_11",
    "file_search",          "code_interpreter",
    "image_generation",     "computer",
    "computer_use_preview", "mcp",
    "tool_search",          "programmatic_tool_calling"};

absl::Status WrongTool(std::string_view path, std::string_view type) {
  return FieldError(base::StrCat(path, ".type"),
                    base::StrCat("'", path, ".type' must be function, custom, local_shell, shell, ",
                                 "apply_patch or namespace, found ", base::Quote(type)),
                    "unsupported_parameter");
}

absl::StatusOr<std::string> ToolNameOf(const Json& tool, std::string_view path) {
  std::string name = TextOr(tool, "name", "");
  if (!name.empty()) return name;
  return FieldError(base::StrCat(path, ".name"), base::StrCat("'", path, ".name' is missing"),
                    "missing_required_parameter");
}

// The description of a custom tool, with the grammar of its text, which is shown to the model.
std::string CustomDescription(const Json& tool) {
  std::string text = TextOr(tool, "description", "");
  const Json* format = Find(tool, "format");
  if (format == nullptr || TextOr(*format, "type", "") != "grammar") return text;
  return base::StrCat(text, "\nThe input follows this grammar (", TextOr(*format, "syntax", ""),
                      "):\n", TextOr(*format, "definition", ""));
}

// A shell runs at the client unless it is said to run in a container.
bool RunsInContainer(const Json& tool) {
  const Json* environment = Find(tool, "environment");
  return environment != nullptr && TextOr(*environment, "type", "local") != "local";
}

}  // namespace

std::string NamespacedName(std::string_view name_space, std::string_view name) {
  return base::StrCat(name_space, name_space.ends_with("__") ? "" : "__", name);
}

absl::StatusOr<ResponseTools> ResponseTools::Read(const Json& tools, std::string_view path,
                                                  Json* functions) {
  ResponseTools read;
  for (size_t i = 0; i < tools.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(read.Add(tools[i], base::StrCat(path, "[", i, "]"), "", functions));
  }
  return read;
}

absl::Status ResponseTools::Add(const Json& tool, std::string_view path,
                                std::string_view name_space, Json* functions) {
  const std::string type = TextOr(tool, "type", "");
  if (type == "function") {
    Json function = tool;
    function.erase("type");
    if (!name_space.empty()) {
      HEDDLE_ASSIGN_OR_RETURN(std::string name, ToolNameOf(tool, path));
      function["name"] = NamespacedName(name_space, name);
      special_.push_back({ResponseTool::Kind::kFunction, NamespacedName(name_space, name),
                          std::move(name), std::string(name_space)});
    }
    functions->push_back({{"type", "function"}, {"function", std::move(function)}});
    return absl::OkStatus();
  }
  if (type == "custom") {
    HEDDLE_RETURN_IF_ERROR(ToolNameOf(tool, path).status());
    return AddCustom(tool, path, functions);
  }
  if (!name_space.empty()) return WrongTool(path, type);  // namespaces hold no others
  if (type == "namespace") return AddNamespace(tool, path, functions);
  const ClientTool* const client = FindClientTool(type);
  if (client != nullptr && !RunsInContainer(tool)) {
    AddClientTool(*client, functions);
    return absl::OkStatus();
  }
  const bool is_hosted =
      std::find(kHostedTools.begin(), kHostedTools.end(), type) != kHostedTools.end();
  if (client == nullptr && !is_hosted) return WrongTool(path, type);
  Warn(base::StrCat("the tool ", type, " is left out: this server has no tools of its own"));
  return absl::OkStatus();
}

absl::Status ResponseTools::AddNamespace(const Json& tool, std::string_view path, Json* functions) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string name, ToolNameOf(tool, path));
  const Json* members = Find(tool, "tools");
  if (members == nullptr || !members->is_array()) {
    return FieldError(base::StrCat(path, ".tools"),
                      base::StrCat("'", path, ".tools' must be an array"), "invalid_type");
  }
  for (size_t i = 0; i < members->size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(
        Add((*members)[i], base::StrCat(path, ".tools[", i, "]"), name, functions));
  }
  return absl::OkStatus();
}

absl::Status ResponseTools::AddCustom(const Json& tool, std::string_view path, Json* functions) {
  const std::string name = TextOr(tool, "name", "");
  Json input = {{"type", "string"}, {"description", "the whole input of the tool, as it is"}};
  Json function = {{"name", name},
                   {"description", CustomDescription(tool)},
                   {"parameters",
                    {{"type", "object"},
                     {"properties", {{"input", std::move(input)}}},
                     {"required", Json::array({"input"})},
                     {"additionalProperties", false}}}};
  functions->push_back({{"type", "function"}, {"function", std::move(function)}});
  special_.push_back({ResponseTool::Kind::kCustom, name, name, ""});
  const Json* format = Find(tool, "format");
  if (format == nullptr || TextOr(*format, "type", "") != "grammar") return absl::OkStatus();
  return AddGrammar(*format, name, base::StrCat(path, ".format"));
}

absl::Status ResponseTools::AddGrammar(const Json& format, const std::string& name,
                                       std::string_view path) {
  const std::string syntax = TextOr(format, "syntax", "");
  if (syntax != "lark" && syntax != "regex") {
    return FieldError(
        base::StrCat(path, ".syntax"),
        base::StrCat("'", path, ".syntax' must be lark or regex, found ", base::Quote(syntax)));
  }
  const std::string* definition = TextOf(Find(format, "definition"));
  if (definition == nullptr) {
    return FieldError(base::StrCat(path, ".definition"),
                      base::StrCat("'", path, ".definition' must be a string"), "invalid_type");
  }
  grammars_.push_back({name, syntax == "regex", *definition});
  return absl::OkStatus();
}

void ResponseTools::AddClientTool(const ClientTool& tool, Json* functions) {
  functions->push_back(server::FunctionOf(tool));
  const std::string name(tool.name);
  special_.push_back({ResponseTool::Kind::kClient, name, name, "", &tool});
}

void ResponseTools::Warn(std::string text) {
  constexpr size_t kMaxBytes = 1024;  // of a header
  if (warning_.size() + text.size() > kMaxBytes) return;
  warning_ = warning_.empty() ? std::move(text) : base::StrCat(warning_, "; ", text);
}

const ResponseTool* ResponseTools::Of(std::string_view function) const {
  const auto found =
      std::find_if(special_.begin(), special_.end(),
                   [function](const ResponseTool& tool) { return tool.function == function; });
  return found == special_.end() ? nullptr : &*found;
}

std::string ResponseTools::FunctionOf(std::string_view name, std::string_view name_space) const {
  if (!name_space.empty()) return NamespacedName(name_space, name);
  return std::string(name);
}

std::string CustomInput(const ToolCall& call) {
  const absl::StatusOr<Json> arguments = ParseJsonObject(call.arguments);
  return arguments.ok() ? TextOr(*arguments, "input", "") : "";
}

std::string_view CallPrefix(const ResponseTool* tool) {
  if (tool == nullptr || tool->kind == ResponseTool::Kind::kFunction) return "fc";
  return tool->kind == ResponseTool::Kind::kCustom ? "ctc" : tool->client->id_prefix;
}

void WriteCallItem(const ResponseTool* tool, const ToolCall& call, std::string_view call_id,
                   std::string_view status, JsonWriter* json) {
  const auto begin = [&](std::string_view type) {
    json->Member("type", type).Member("status", status).Member("call_id", call_id);
  };
  if (tool != nullptr && tool->kind == ResponseTool::Kind::kClient) {
    begin(tool->client->item);
    WriteClientAction(*tool->client, call, json);
  } else if (tool != nullptr && tool->kind == ResponseTool::Kind::kCustom) {
    begin("custom_tool_call");
    json->Member("name", tool->name).Member("input", CustomInput(call));
  } else {
    begin("function_call");
    json->Member("name", tool == nullptr ? call.name : tool->name);
    if (tool != nullptr) json->Member("namespace", tool->name_space);
    json->Member("arguments", call.arguments);
  }
}

}  // namespace heddle::server
