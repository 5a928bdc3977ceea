// The fields of /v1/messages, in the order of the documentation, and of the objects within them.
#pragma once

#include "server/openai/chat_fields.h"

namespace heddle::server::fields {

inline constexpr Field kMessagesToolChoice[] = {
    {"type", kString, 0, kInfinity, "", "auto, any, tool or none"},
    {"name", kString, 0, kInfinity, "", "of the tool"},
    {"disable_parallel_tool_use", kBoolean, 0, 0, "false", "at most one call per answer"},
};

inline constexpr Field kThinking[] = {
    {"type", kString, 0, kInfinity, "", "enabled, adaptive or disabled", true},
    {"budget_tokens", kInteger, 0, kMaxInt32, "", "accepted and not used"},
};

inline constexpr Field kOutputFormat[] = {
    {"type", kString, 0, kInfinity, "", "json_schema", true},
    {"schema", kSchema, 0, kInfinity, "", "what the answer is valid by"},
};

inline constexpr Field kOutputConfig[] = {
    {"effort", kString, 0, 64, "", "passed to the chat template"},
    {"format", kObject, 0, kInfinity, "", "a json_schema", false, kOutputFormat},
};

inline constexpr Field kMessages[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"messages", kArray, 1, kInfinity, "", "the conversation so far", true},
    {"max_tokens", kInteger, 1, kMaxInt32, "", "tokens to generate at most; required"},
    {"system", kStringOrArray, 0, kInfinity, "", "system message: a text, or text blocks"},
    {"stop_sequences", kArray, 0, 64, "[]", "strings that end the answer"},
    {"stream", kBoolean, 0, 0, "false", "send the answer as server-sent events"},
    {"temperature", kNumber, 0, 2, "(of the model, else 1)", "0 always takes the likeliest token"},
    {"top_p", kNumber, 0, 1, "(of the model, else 1)",
     "draw from the likeliest tokens that together have this probability"},
    {"top_k", kInteger, -1, kMaxInt32, "(of the model, else 0)",
     "draw from so many of the likeliest tokens"},
    {"tools", kArray, 0, 1024, "[]", "tools the model may use"},
    {"tool_choice", kObject, 0, kInfinity, "", "type: auto, any, tool (with name) or none", false,
     kMessagesToolChoice},
    {"thinking", kObject, 0, kInfinity, "", "type: enabled, adaptive or disabled", false,
     kThinking},
    {"output_config", kObject, 0, kInfinity, "",
     "format: a json_schema that the answer is valid by; effort: passed to the chat template",
     false, kOutputConfig},
    {"metadata", kObject, 0, kInfinity, "{}", "accepted and not used"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    kLora,
    kCacheSalt,
};

}  // namespace heddle::server::fields
