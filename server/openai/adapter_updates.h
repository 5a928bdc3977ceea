// Loading and unloading of adapters at run time, in the forms of three other servers: vLLM's
// (/v1/load_lora_adapter), SGLang's (/load_lora_adapter) and llama.cpp's (/lora-adapters). Requests
// are read and answers written here; the registry does what they ask.
// Thread-safety: any thread. Functions that may ask the disk end with TakesLong where the context
// has no patience for it.
// Sources: vLLM's entrypoints/serve/lora, SGLang's managers/io_struct.py, llama.cpp's tools/server.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"

namespace heddle::server {

enum class UpdateForm : uint8_t { kVllm, kSglang };

struct AdapterLoad {
  std::string name;
  std::string path;
  bool replace = false;
  bool pinned = false;
};

// INVALID_ARGUMENT names the field at fault.
absl::StatusOr<AdapterLoad> ParseAdapterLoad(std::string_view body, const RequestContext& context);

// The name to unload.
absl::StatusOr<std::string> ParseAdapterUnload(std::string_view body,
                                               const RequestContext& context);

// A registry's error as clients are to see it: one that waiting does not mend is the request's.
absl::Status AdapterUpdateError(const absl::Status& status);

// The body for a client whose update is done: a sentence with vLLM, JSON with SGLang.
std::string AdapterUpdateAnswer(UpdateForm form, std::string_view name, std::string_view done,
                                const RequestContext& context);
// SGLang's answer to an update that failed.
std::string FailedUpdateAnswer(const absl::Status& status, const RequestContext& context);

// llama.cpp's list of the adapters given at start that the client may use, with their scales in
// answers of the base model: [{"id", "path", "scale"...}].
std::string BaseAdapterList(const RequestContext& context);

// Sets those scales from [{"id", "scale"}]; an adapter that is not named gets 0. The answer is
// {"success": true}.
absl::StatusOr<std::string> SetBaseAdapters(std::string_view body, const RequestContext& context);

}  // namespace heddle::server
