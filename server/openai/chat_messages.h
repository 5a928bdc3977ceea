// Checks the messages and tools of a chat request, and brings them into the form that chat
// templates expect (they were written for transformers, which passes them almost unchanged).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/request/json_input.h"

namespace heddle::server {

// Limit on the messages of a conversation, above any reasonable client's.
inline constexpr size_t kMaxMessages = 8192;

// A copy of `messages` (an array) where
// - content parts have become one string, joined by newlines; parts that are not text are refused;
// - "developer" has become "system", which is the word templates know;
// - content null is an empty string, and only allowed where an assistant calls tools or said
//   nothing;
// - an assistant's "function_call" is one of "tool_calls", and the role "function" is "tool";
// - an assistant's reasoning has all the names that templates know it by;
// - arguments of tool calls that hold a JSON object as a string are that object.
// Other members are kept. Errors name the place, as in messages[2].content[0].type.
absl::StatusOr<Json> NormalizeMessages(const Json& messages);

// Each tool must be {"type":"function","function":{"name":...}}; `array_path` is that of the list.
absl::Status CheckTools(const Json& tools, std::string_view array_path = "tools");

}  // namespace heddle::server
