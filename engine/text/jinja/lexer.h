// Splits a template into tokens, with the whitespace rules that chat templates get from Jinja2:
// trim_blocks (removes the newline behind a tag), lstrip_blocks (removes the indentation before a
// tag), `-` strips on its side, `+` keeps, and one newline at the very end of the source is
// removed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace heddle::engine::text::jinja {

enum class TokenKind : uint8_t {
  kData,           // literal output
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // end of the template
};

struct Token {
  TokenKind kind;
  int line;          // line of its first character, from 1
  std::string text;  // name, operator, or unescaped text
  int64_t integer = 0;
  double real = 0;

  bool IsName(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool IsOperator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

// The last token is kEnd. Errors are INVALID_ARGUMENT with "line N: ..." at the front.
// REQUIRES: source is valid UTF-8 without carriage returns; see NormalizeSource.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// Turns every kind of line end into "\n" and drops one at the end of the source.
std::string NormalizeSource(std::string_view source);

// An error about the template's text, "line N: message".
absl::Status SyntaxError(int line, std::string_view message);

}  // namespace heddle::engine::text::jinja
