// The tools of /v1/messages as functions of a chat. Those that Anthropic describes and the client
// runs (bash, text_editor, memory) become functions of the client; those that Anthropic's servers
// would run (web_search...) are left out, with a warning.
// Source: Anthropic's API reference, "Tool reference".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/request/json_input.h"

namespace heddle::server {

// Sets "tools" of `*chat`, unless none are left. Adds to `*warning` which ones are left out.
// INVALID_ARGUMENT names the entry at fault.
absl::Status AddMessageTools(const Json& tools, Json* chat, std::string* warning);

// Whether a block of an assistant's message is a call, or a result, of a tool that another server
// ran: it tells this model nothing.
bool IsForeignBlock(std::string_view type);

}  // namespace heddle::server
