#include "server/anthropic/message_tools.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// A type is a name and the date of a version: "bash_20250124".
struct KnownTool {
  std::string_view prefix;
  std::string_view description;
  std::string_view schema;  // empty: Anthropic's servers run it
};

constexpr KnownTool kKnownTools[] = {
    {"bash_", "Runs a command in a shell that stays open between calls; restart opens a new one.",
     R"({"type":"object","properties":{"command":{"type":"string"},"restart":{"type":"boolean"}}})"},
    {"text_editor_", "Views, creates and edits files.",
     R"({"type":"object","properties":{
         "command":{"enum":["view","create","str_replace","insert"]},"path":{"type":"string"},
         "view_range":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2},
         "file_text":{"type":"string"},"old_str":{"type":"string"},"new_str":{"type":"string"},
         "insert_line":{"type":"integer"},"insert_text":{"type":"string"}},
         "required":["command","path"]})"},
    {"memory_",
     "Keeps notes in files below /memories, which stay from one conversation to the next.",
     R"({"type":"object","properties":{
         "command":{"enum":["view","create","str_replace","insert","delete","rename"]},
         "path":{"type":"string"},
         "view_range":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2},
         "file_text":{"type":"string"},"old_str":{"type":"string"},"new_str":{"type":"string"},
         "insert_line":{"type":"integer"},"insert_text":{"type":"string"},
         "old_path":{"type":"string"},"new_path":{"type":"string"}},"required":["command"]})"},
    {"web_search_", "", ""},
    {"web_fetch_", "", ""},
    {"code_execution_", "", ""},
    {"tool_search_tool_", "", ""},
    {"mcp_toolset", "", ""},
};

const KnownTool* FindKnown(std::string_view type) {
  const auto* const found =
      std::find_if(std::begin(kKnownTools), std::end(kKnownTools),
                   [type](const KnownTool& tool) { return type.starts_with(tool.prefix); });
  return found == std::end(kKnownTools) ? nullptr : found;
}

absl::Status WrongTool(std::string_view path) {
  return FieldError(path,
                    base::StrCat("'", path,
                                 "' must be a tool of the client's own with a name, bash, "
                                 "text_editor or memory; this server has no tools"),
                    "unsupported_parameter");
}

}  // namespace

absl::Status AddMessageTools(const Json& tools, Json* chat, std::string* warning) {
  Json converted = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const std::string path = base::StrCat("tools[", i, "]");
    const std::string type = tool.is_object() ? TextOr(tool, "type", "custom") : "";
    const std::string name = TextOr(tool, "name", "");
    const KnownTool* const known = FindKnown(type);
    if (known != nullptr && known->schema.empty()) {
      warning->append(base::StrCat(warning->empty() ? "" : "; ", "the tool ", type,
                                   " is left out: this server has no tools of its own"));
      continue;
    }
    if ((known == nullptr && type != "custom") || name.empty()) return WrongTool(path);
    Json function = {{"name", name}, {"description", TextOr(tool, "description", "")}};
    const Json* schema = Find(tool, "input_schema");
    if (known != nullptr) {
      function["description"] = known->description;
      function["parameters"] = Json::parse(known->schema);
    } else {
      function["parameters"] = schema == nullptr ? Json{{"type", "object"}} : *schema;
    }
    converted.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!converted.empty() || tools.empty()) (*chat)["tools"] = std::move(converted);
  return absl::OkStatus();
}

bool IsForeignBlock(std::string_view type) {
  return type == "server_tool_use" || type == "mcp_tool_use" || type == "mcp_tool_result" ||
         type == "redacted_thinking" || (type.ends_with("_tool_result") && type != "tool_result");
}

}  // namespace heddle::server
