#include "tests/gpu/ptx/statements.h"

#include <algorithm>
#include <cctype>

namespace heddle::ptx {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

bool IsOfName(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

// Comments become spaces, so that lines keep their numbers.
void BlankComments(std::string& text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '/') continue;
    if (text[i + 1] == '/') {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (text[i + 1] == '*') {
      const size_t end = std::min(text.find("*/", i + 2), text.size() - 2) + 2;
      for (; i < end; ++i) text[i] = text[i] == '\n' ? '\n' : ' ';
    }
  }
}

}  // namespace

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view TakeUntil(std::string_view ends, std::string_view* rest) {
  *rest = Trim(*rest);
  const size_t end = std::min(rest->find_first_of(ends), rest->size());
  const std::string_view word = rest->substr(0, end);
  *rest = Trim(rest->substr(end));
  return Trim(word);
}

Statements::Statements(std::string_view text) : text_(text) { BlankComments(text_); }

void Statements::SkipSpace() {
  for (; at_ < text_.size() && (IsSpace(text_[at_]) || text_[at_] == ';'); ++at_) {
    line_ += text_[at_] == '\n';
  }
}

Statement Statements::Cut(Statement::Kind kind, size_t end, size_t next) {
  const Statement cut = {kind, Trim(std::string_view(text_).substr(at_, end - at_)), line_, false};
  next = std::min(next, text_.size());
  line_ +=
      static_cast<int32_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                      text_.begin() + static_cast<std::ptrdiff_t>(next), '\n'));
  at_ = next;
  return cut;
}

Statement Statements::Directive() {
  const std::string_view rest = std::string_view(text_).substr(at_);
  for (const std::string_view of_a_line :
       {".version", ".target", ".address_size", ".file", ".loc"}) {
    if (!rest.starts_with(of_a_line)) continue;
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    return Cut(Statement::Kind::kDirective, end, end);
  }
  const size_t semicolon = std::min(text_.find(';', at_), text_.size());
  const size_t brace = std::min(text_.find('{', at_), text_.size());
  const std::string_view before = rest.substr(0, brace - at_);
  if (brace < semicolon && before.find('=') == std::string_view::npos) {  // an entry or a function
    Statement cut = Cut(Statement::Kind::kDirective, brace, brace);
    cut.opens = true;
    return cut;
  }
  return Cut(Statement::Kind::kDirective, semicolon, semicolon + 1);
}

Statement Statements::Next() {
  SkipSpace();
  if (at_ >= text_.size()) return {Statement::Kind::kEnd, {}, line_, false};
  switch (text_[at_]) {
    case '{':
      return Cut(Statement::Kind::kOpen, at_, at_ + 1);
    case '}':
      return Cut(Statement::Kind::kClose, at_, at_ + 1);
    case '.':
      return Directive();
    default:
      break;
  }
  size_t end = at_;
  while (end < text_.size() && IsOfName(text_[end])) ++end;
  while (end < text_.size() && IsSpace(text_[end])) ++end;
  if (end + 1 < text_.size() && text_[end] == ':' && text_[end + 1] != ':') {
    return Cut(Statement::Kind::kLabel, end, end + 1);
  }
  const size_t semicolon = std::min(text_.find(';', at_), text_.size());
  return Cut(Statement::Kind::kInstruction, semicolon, semicolon + 1);
}

void Statements::SkipScope() {
  for (int depth = 1; depth > 0 && at_ < text_.size(); ++at_) {
    line_ += text_[at_] == '\n';
    depth += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
  }
}

}  // namespace heddle::ptx
