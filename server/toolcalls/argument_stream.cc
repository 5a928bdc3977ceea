#include "server/toolcalls/argument_stream.h"

#include <algorithm>

#include "nlohmann/json.hpp"
#include "server/toolcalls/call_decoders.h"
#include "server/toolcalls/white_space.h"

namespace heddle::server {
namespace {

enum class Found : uint8_t { kNo, kUndecided, kYes };

// Reads the head of a call from its front.
class Head {
 public:
  explicit Head(std::string_view text) : rest_(text), size_(text.size()) {}

  size_t read() const { return size_ - rest_.size(); }

  Found White() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kWhite), rest_.size()));
    return rest_.empty() ? Found::kUndecided : Found::kYes;
  }
  Found Char(char c) {
    if (White() != Found::kYes) return Found::kUndecided;
    if (rest_.front() != c) return Found::kNo;
    rest_.remove_prefix(1);
    return Found::kYes;
  }
  Found String(std::string* value) {
    if (Found quote = Char('"'); quote != Found::kYes) return quote;
    for (size_t i = 0; i < rest_.size(); ++i) {
      if (rest_[i] == '\\') return Found::kNo;  // tools' names have no escapes
      if (rest_[i] != '"') continue;
      value->assign(rest_.substr(0, i));
      rest_.remove_prefix(i + 1);
      return Found::kYes;
    }
    return Found::kUndecided;
  }

 private:
  std::string_view rest_;
  size_t size_;
};

// Reads {"name": "f", "arguments": up to the opening brace of the arguments; other members with
// strings may precede.
Found JsonHead(std::string_view text, std::string* name, size_t* begin) {
  Head head(text);
  if (Found open = head.Char('{'); open != Found::kYes) return open;
  name->clear();
  while (true) {
    std::string key;
    std::string value;
    if (Found found = head.String(&key); found != Found::kYes) return found;
    if (Found found = head.Char(':'); found != Found::kYes) return found;
    if ((key == "arguments" || key == "parameters") && !name->empty()) {
      const Found found = head.Char('{');
      *begin = head.read() - 1;
      return found;
    }
    if (Found found = head.String(&value); found != Found::kYes) return found;
    if (key == "name" || key == "tool_name") *name = value;
    if (Found found = head.Char(','); found != Found::kYes) return found;
  }
}

Found NamedHead(std::string_view text, std::string* name, size_t* begin) {
  const size_t first = text.find_first_not_of(kWhite);
  if (first != std::string_view::npos && text[first] == '{') return JsonHead(text, name, begin);
  *begin = text.find('{');
  if (*begin == std::string_view::npos) return Found::kUndecided;
  *name = CalledName(text.substr(0, *begin));
  return name->empty() ? Found::kNo : Found::kYes;
}

}  // namespace

void ArgumentStream::Begin(const ToolSyntax* syntax, const ToolSet* tools) {
  *this = ArgumentStream();
  syntax_ = syntax;
  tools_ = tools;
  const bool is_known = syntax->decode == DecodeJsonCall || syntax->decode == DecodeNamedJson ||
                        syntax->decode == DecodeOfferedJsonCall;
  if (is_known) state_ = State::kBefore;
}

void ArgumentStream::Read(std::string_view text, std::string* out) {
  if (state_ == State::kBefore) FindBegin(text);
  if (state_ == State::kInside) Pass(text, out);
}

void ArgumentStream::FindBegin(std::string_view text) {
  const bool named = syntax_->decode == DecodeNamedJson;
  // The end of a call also ends its head.
  const bool by_mark = syntax_->end == CallEnd::kMark;
  const size_t close = by_mark ? text.find(syntax_->close) : std::string_view::npos;
  const std::string_view head = text.substr(0, std::min(close, kMaxCallHeaderBytes));
  const Found found = named ? NamedHead(head, &name_, &at_) : JsonHead(head, &name_, &at_);
  if (found == Found::kUndecided && text.size() < kMaxCallHeaderBytes) return;
  const bool offered =
      syntax_->decode != DecodeOfferedJsonCall || (tools_ != nullptr && tools_->Has(name_));
  state_ = found == Found::kYes && offered ? State::kInside : State::kNever;
}

void ArgumentStream::Pass(std::string_view text, std::string* out) {
  const bool by_mark = syntax_->end == CallEnd::kMark;
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    if (in_string_) {
      out->push_back(c);
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      continue;
    }
    // The closing mark may come in place of a missing brace, so its possible beginning waits.
    if (by_mark && c == syntax_->close.front()) {
      const std::string_view rest = text.substr(at_);
      if (rest.starts_with(syntax_->close) || syntax_->close.starts_with(rest)) return;
    }
    if (kWhite.find(c) != std::string_view::npos) continue;
    out->push_back(c);
    in_string_ = c == '"';
    // Parentheses are not part of JSON, but CallEnd::kBrackets counts them to find a call's end.
    if (c == '{' || c == '[' || c == '(') ++depth_;
    if ((c == '}' || c == ']' || c == ')') && --depth_ == 0) {
      ++at_;
      state_ = State::kBehind;
      return;
    }
  }
}

size_t ArgumentStream::search_from() const {
  if (!begun()) return 0;
  return in_string_ ? std::string_view::npos : at_;
}

}  // namespace heddle::server
