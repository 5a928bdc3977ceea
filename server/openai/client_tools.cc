#include "server/openai/client_tools.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "nlohmann/json.hpp"
#include "server/json_writer.h"

namespace heddle::server {
namespace {

constexpr ClientTool kTools[] = {
    {"local_shell", "Runs a command on the user's machine and returns its output.",
     R"({"type":"object","properties":{"command":{"type":"array","items":{"type":"string"}},
         "working_directory":{"type":"string"},"timeout_ms":{"type":"integer"}},
         "required":["command"]})",
     "local_shell_call", "lsh", "action"},
    {"shell", "Runs shell commands on the user's machine and returns the output of each.",
     R"({"type":"object","properties":{"commands":{"type":"array","items":{"type":"string"}},
         "timeout_ms":{"type":"integer"},"max_output_length":{"type":"integer"}},
         "required":["commands"]})",
     "shell_call", "sh", "action"},
    {"apply_patch",
     "Creates, updates or deletes one file. The diff is a unified diff without a head.",
     R"({"type":"object","properties":{
         "type":{"enum":["create_file","update_file","delete_file"]},
         "path":{"type":"string"},"diff":{"type":"string"}},"required":["type","path"]})",
     "apply_patch_call", "apc", "operation"},
};

// A list of words; what is no text is written as JSON.
void WriteWords(const Json* words, JsonWriter* json) {
  json->BeginArray();
  for (size_t i = 0; words != nullptr && words->is_array() && i < words->size(); ++i) {
    const std::string* text = TextOf(&(*words)[i]);
    json->String(text == nullptr ? (*words)[i].dump() : *text);
  }
  json->EndArray();
}

void WriteInteger(const Json& arguments, std::string_view name, JsonWriter* json) {
  const Json* given = Find(arguments, name);
  const std::optional<int64_t> value = given == nullptr ? std::nullopt : IntegerOf(*given);
  json->Key(name);
  value.has_value() ? json->Int(*value) : json->Null();
}

void WriteLocalShell(const Json& arguments, JsonWriter* json) {
  json->BeginObject().Member("type", "exec").Key("command");
  WriteWords(Find(arguments, "command"), json);
  json->Key("env").BeginObject().EndObject();
  WriteInteger(arguments, "timeout_ms", json);
  json->Key("working_directory");
  const std::string* folder = TextOf(Find(arguments, "working_directory"));
  folder == nullptr ? json->Null() : json->String(*folder);
  json->NullMember("user").EndObject();
}

void WriteShell(const Json& arguments, JsonWriter* json) {
  json->BeginObject().Key("commands");
  WriteWords(Find(arguments, "commands"), json);
  WriteInteger(arguments, "timeout_ms", json);
  WriteInteger(arguments, "max_output_length", json);
  json->EndObject();
}

void WritePatch(const Json& arguments, JsonWriter* json) {
  const std::string type = TextOr(arguments, "type", "update_file");
  json->BeginObject().Member("type", type).Member("path", TextOr(arguments, "path", ""));
  if (type != "delete_file") json->Member("diff", TextOr(arguments, "diff", ""));
  json->EndObject();
}

}  // namespace

const ClientTool* FindClientTool(std::string_view type) {
  const auto* const found = std::find_if(std::begin(kTools), std::end(kTools),
                                         [type](const auto& tool) { return tool.name == type; });
  return found == std::end(kTools) ? nullptr : found;
}

const ClientTool* FindClientItem(std::string_view type) {
  const auto* const found = std::find_if(std::begin(kTools), std::end(kTools),
                                         [type](const auto& tool) { return tool.item == type; });
  return found == std::end(kTools) ? nullptr : found;
}

Json FunctionOf(const ClientTool& tool) {
  Json function = {{"name", tool.name},
                   {"description", tool.description},
                   {"parameters", Json::parse(tool.parameters)}};
  return {{"type", "function"}, {"function", std::move(function)}};
}

void WriteClientAction(const ClientTool& tool, const ToolCall& call, JsonWriter* json) {
  const absl::StatusOr<Json> read = ParseJsonObject(call.arguments);
  const Json arguments = read.ok() ? *read : Json::object();
  json->Key(tool.member);
  if (tool.name == "local_shell") {
    WriteLocalShell(arguments, json);
  } else if (tool.name == "shell") {
    WriteShell(arguments, json);
  } else {
    WritePatch(arguments, json);
  }
}

std::string ArgumentsOf(const ClientTool& tool, const Json& item) {
  const Json* action = Find(item, tool.member);
  const Json schema = Json::parse(tool.parameters);
  Json arguments = Json::object();
  for (auto it = schema["properties"].begin(); it != schema["properties"].end(); ++it) {
    const Json* value = action == nullptr ? nullptr : Find(*action, it.key());
    if (value != nullptr) arguments[it.key()] = *value;
  }
  return arguments.dump();
}

std::string OutputText(const Json& item, const Json* output) {
  if (output == nullptr) return TextOr(item, "status", "");
  const std::string* text = TextOf(output);
  return text == nullptr ? output->dump() : *text;
}

}  // namespace heddle::server
