#include "server/openai/tool_calls.h"

#include <algorithm>
#include <optional>

#include "nlohmann/json.hpp"
#include "server/openai/json_input.h"

namespace heddle::server {
namespace {

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";
constexpr std::string_view kWhite = " \t\r\n";
// Longer than any call a client could want; what exceeds it is content.
constexpr size_t kMaxCallBytes = size_t{1} << 18;

// Bytes at the end of `text` that may become white space and kBegin.
size_t HoldBack(std::string_view text) {
  size_t length = std::min(kBegin.size() - 1, text.size());
  while (length > 0 && !kBegin.starts_with(text.substr(text.size() - length))) --length;
  std::string_view before = text.substr(0, text.size() - length);
  size_t last = before.find_last_not_of(kWhite);
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

std::optional<ToolCall> ParseCall(std::string_view text) {
  absl::StatusOr<Json> json = ParseJsonObject(text);
  if (!json.ok()) return std::nullopt;
  const Json* name = Find(*json, "name");
  if (name == nullptr || !name->is_string()) return std::nullopt;
  ToolCall call{name->get<std::string>(), "{}"};
  const Json* arguments = Find(*json, "arguments");
  if (arguments == nullptr) arguments = Find(*json, "parameters");
  if (arguments == nullptr) return call;
  if (arguments->is_string()) {  // some models write the object as a string
    call.arguments = arguments->get<std::string>();
    return ParseJsonObject(call.arguments).ok() ? std::optional(call) : std::nullopt;
  }
  if (!arguments->is_object()) return std::nullopt;
  call.arguments = arguments->dump();
  return call;
}

}  // namespace

ToolFormat ToolFormatOf(std::string_view chat_template) {
  bool tagged = chat_template.find(kBegin) != std::string_view::npos;
  // Qwen3-Coder and GLM put XML of their own between the same tags.
  bool xml = chat_template.find("<function=") != std::string_view::npos ||
             chat_template.find("<arg_key>") != std::string_view::npos;
  return tagged && !xml ? ToolFormat::kHermes : ToolFormat::kNone;
}

void HermesToolParser::Push(std::string_view piece, std::string* content,
                            std::vector<ToolCall>* calls) {
  held_.append(piece);
  while (in_call_ ? TakeCall(content, calls) : TakeContent(content)) {
  }
}

void HermesToolParser::Finish(std::string* content) {
  if (!in_call_) content->append(held_);
  held_.clear();
}

// Moves content out, up to a call; true: a call begins.
bool HermesToolParser::TakeContent(std::string* content) {
  if (after_call_) {
    held_.erase(0, std::min(held_.find_first_not_of(kWhite), held_.size()));
    if (held_.empty()) return false;
    // Content again, unless what is there is or may become the next call's tag.
    std::string_view tag = kBegin.substr(0, std::min(held_.size(), kBegin.size()));
    if (!held_.starts_with(tag)) after_call_ = false;
  }
  size_t begin = held_.find(kBegin);
  if (begin == std::string::npos) {
    size_t safe = held_.size() - HoldBack(held_);
    content->append(held_, 0, safe);
    held_.erase(0, safe);
    return false;
  }
  size_t last = std::string_view(held_).substr(0, begin).find_last_not_of(kWhite);
  if (last != std::string::npos) content->append(held_, 0, last + 1);
  held_.erase(0, begin + kBegin.size());
  in_call_ = true;
  return true;
}

// Takes a whole call; false: it is not whole yet. What is no call after all is content.
bool HermesToolParser::TakeCall(std::string* content, std::vector<ToolCall>* calls) {
  size_t end = held_.find(kEnd, searched_);
  if (end == std::string::npos && held_.size() <= kMaxCallBytes) {
    searched_ = held_.size() - std::min(held_.size(), kEnd.size() - 1);
    return false;
  }
  in_call_ = after_call_ = false;
  searched_ = 0;
  if (end == std::string::npos) {
    content->append(kBegin);
    return true;
  }
  if (std::optional<ToolCall> call = ParseCall(std::string_view(held_).substr(0, end))) {
    calls->push_back(*std::move(call));
    after_call_ = true;
  } else {
    content->append(kBegin);
    content->append(held_, 0, end + kEnd.size());
  }
  held_.erase(0, end + kEnd.size());
  return true;
}

}  // namespace heddle::server
