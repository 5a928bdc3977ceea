// Decodes the text of one written call to ToolCalls: one function per notation. The row of a
// model's family (output_syntax.cc) names its own.
// All of them read a model's output, which may be malformed; they return false if it is not a call.
#pragma once

#include <string_view>
#include <vector>

#include "server/toolcalls/tool_call.h"

namespace heddle::server {

using DecodeCalls = bool (*)(std::string_view text, const ToolSet& tools,
                             std::vector<ToolCall>* calls);

// {"name": "f", "arguments": {...}}; "tool_name", "parameters" for the same, the arguments as a
// string, and
// {"type": "function", "function": {...}} around it are accepted.
bool DecodeJsonCall(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls);

// The same, but only for offered tools: for formats in which any JSON object could be a call.
bool DecodeOfferedJsonCall(std::string_view text, const ToolSet& tools,
                           std::vector<ToolCall>* calls);

// A name, whatever separates them, and an object: f[ARGS]{...} (Mistral), f<|sep|>{...} and
// function<|sep|>f\n```json\n{...}\n``` (DeepSeek), functions.f:0<|...|>{...} (Kimi),
// f <|constrain|>json<|message|>{...} (gpt-oss). A call in JSON alone is accepted too.
bool DecodeNamedJson(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls);

// <function=f><parameter=p>value</parameter>...</function> (Qwen3-Coder, Seed), or the same as
// <invoke name="f"><parameter name="p">value</parameter></invoke> (MiniMax); one or several.
bool DecodeTaggedCalls(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls);

// f\n<arg_key>p</arg_key>\n<arg_value>value</arg_value>... (GLM).
bool DecodeArgPairs(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls);

// [f(p='value', q=[1, None]), g()]: calls as Python writes them, with literals (Llama 3.2 and 4).
bool DecodePythonic(std::string_view text, const ToolSet& tools, std::vector<ToolCall>* calls);

// The name in the text before the object of DecodeNamedJson; empty without one.
std::string_view CalledName(std::string_view header);

}  // namespace heddle::server
