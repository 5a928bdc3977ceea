// Finds tool calls in what a model writes, as the text comes. Here the form that Hermes and
// Qwen2.5/3 models and the demo model use: <tool_call>{"name": ..., "arguments":
// {...}}</tool_call>.
//
// Content and calls are the same however the text is cut. A call is only reported when it is whole:
// half of one never shows, neither as a call nor as content.
// Thread-safety: none; one per choice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::server {

// How a model writes its calls; follows from its chat template.
enum class ToolFormat : uint8_t { kNone, kHermes };

// The format that a template's source asks its model for.
ToolFormat ToolFormatOf(std::string_view chat_template);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

class HermesToolParser {
 public:
  // Appends to *content what is not part of a call, and to *calls what became whole. White space
  // around calls belongs to neither.
  void Push(std::string_view piece, std::string* content, std::vector<ToolCall>* calls);

  // The text ends. An unfinished call is dropped.
  void Finish(std::string* content);

 private:
  bool TakeContent(std::string* content);
  bool TakeCall(std::string* content, std::vector<ToolCall>* calls);

  std::string held_;
  size_t searched_ = 0;  // of held_, where no end tag begins
  bool in_call_ = false;
  bool after_call_ = false;  // white space is skipped
};

}  // namespace heddle::server
