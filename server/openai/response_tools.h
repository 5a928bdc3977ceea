// The tools of /v1/responses as functions of a chat, and their calls as items.
//
// A model knows functions only. What Codex and other agents offer beside them becomes a function: a
// tool of the type `custom` one whose argument is a text, `local_shell`, `shell` and `apply_patch`
// those of client_tools.h, and the functions of a `namespace` functions with the namespace before
// their names. The client runs all of them. Tools that OpenAI's servers would run (web_search...)
// are left out. Source: OpenAI's API reference, "Responses"; the requests of Codex CLI.
// Thread-safety: immutable once read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/openai/client_tools.h"
#include "server/openai/request_context.h"
#include "server/request/json_input.h"
#include "server/toolcalls/tool_call.h"

namespace heddle::server {

class JsonWriter;

// A tool that is a function of another name, or another kind of item, in the API.
struct ResponseTool {
  enum class Kind : uint8_t { kFunction, kCustom, kClient };
  Kind kind = Kind::kFunction;
  std::string function;                // name of the chat's function
  std::string name;                    // in the API
  std::string name_space;              // of a function; empty: none
  const ClientTool* client = nullptr;  // of kClient
};

class ResponseTools {
 public:
  // Appends the functions of a request's "tools" to `*functions`, an array in the form of chats.
  // INVALID_ARGUMENT names the entry at fault, behind `path`.
  static absl::StatusOr<ResponseTools> Read(const Json& tools, std::string_view path,
                                            Json* functions);

  // The tool of a chat's function, if it is no plain one; nullptr otherwise.
  const ResponseTool* Of(std::string_view function) const;

  // The chat's name of a tool: of a function, perhaps of a namespace, or of a custom tool.
  std::string FunctionOf(std::string_view name, std::string_view name_space) const;

  // The grammars of custom tools.
  const std::vector<TextGrammar>& grammars() const { return grammars_; }

  // A sentence for clients on tools that are left out or changed; empty: none are.
  const std::string& warning() const { return warning_; }

 private:
  absl::Status Add(const Json& tool, std::string_view path, std::string_view name_space,
                   Json* functions);
  absl::Status AddNamespace(const Json& tool, std::string_view path, Json* functions);
  absl::Status AddCustom(const Json& tool, std::string_view path, Json* functions);
  absl::Status AddGrammar(const Json& format, const std::string& name, std::string_view path);
  void AddClientTool(const ClientTool& tool, Json* functions);
  void Warn(std::string text);

  std::vector<ResponseTool> special_;
  std::vector<TextGrammar> grammars_;
  std::string warning_;
};

// The chat's name of a namespace's function.
std::string NamespacedName(std::string_view name_space, std::string_view name);

// The text of a custom tool's call; empty where the arguments do not hold one.
std::string CustomInput(const ToolCall& call);

// Prefix of the ids of a call's item. `tool`: ResponseTools::Of its name.
std::string_view CallPrefix(const ResponseTool* tool);

// The members of a call's item behind its id.
void WriteCallItem(const ResponseTool* tool, const ToolCall& call, std::string_view call_id,
                   std::string_view status, JsonWriter* json);

}  // namespace heddle::server
