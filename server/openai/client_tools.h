// Tools of /v1/responses that the API itself describes and the client runs: local_shell, shell and
// apply_patch. To the model each is a function, whose arguments are an object of the call's item
// and back. The source is OpenAI's API reference, "Responses".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/request/json_input.h"
#include "server/toolcalls/tool_call.h"

namespace heddle::server {

class JsonWriter;

struct ClientTool {
  std::string_view name;         // its type in "tools", and the function's name
  std::string_view description;  // for the model
  std::string_view parameters;   // JSON Schema of the function's arguments
  std::string_view item;         // type of the item that is a call of it
  std::string_view id_prefix;
  std::string_view member;  // of the item: the object that holds the arguments
};

// By type of the tool, or of the item; nullptr: there is none.
const ClientTool* FindClientTool(std::string_view type);
const ClientTool* FindClientItem(std::string_view type);

// The function, in the form of a chat's "tools".
Json FunctionOf(const ClientTool& tool);

// The member of a call's item that holds its arguments, and back.
void WriteClientAction(const ClientTool& tool, const ToolCall& call, JsonWriter* json);
std::string ArgumentsOf(const ClientTool& tool, const Json& item);

// The text of an output item's outcome, for the model. `output` may be null.
std::string OutputText(const Json& item, const Json* output);

}  // namespace heddle::server
