#include "engine/grammar/source_reader.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"

namespace heddle::engine::grammar {
namespace {

bool IsDigit(char32_t c) { return c >= U'0' && c <= U'9'; }

bool IsAlphanumeric(char32_t c) {
  return IsDigit(c) || (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
}

int HexValue(char32_t c) {
  if (IsDigit(c)) return static_cast<int>(c - U'0');
  if (c >= U'a' && c <= U'f') return static_cast<int>(c - U'a') + 10;
  if (c >= U'A' && c <= U'F') return static_cast<int>(c - U'A') + 10;
  return -1;
}

}  // namespace

absl::StatusOr<SourceReader> SourceReader::Create(std::string_view text, std::string_view what) {
  if (text.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(base::StrCat(
        "the ", what, " has ", text.size(), " bytes; at most ", kMaxSourceBytes, " are allowed"));
  }
  const size_t valid = base::ValidUtf8Prefix(text);
  if (valid < text.size()) {
    return absl::InvalidArgumentError(base::StrCat("the ", what, " is not UTF-8 at byte ", valid));
  }
  std::u32string code_points;
  for (size_t i = 0; i < text.size(); i += base::Utf8Size(text[i])) {
    code_points.push_back(base::DecodeUtf8(text.data() + i));
  }
  return SourceReader(std::move(code_points), what);
}

bool SourceReader::TakeIf(char32_t c) {
  if (AtEnd() || Peek() != c) return false;
  ++at_;
  return true;
}

bool SourceReader::TakeIf(std::u32string_view word) {
  if (std::u32string_view(text_).substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

absl::Status SourceReader::Error(std::string_view message) const {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
    const bool is_break = text_[i] == U'\n';
    line += is_break ? 1 : 0;
    column = is_break ? 1 : column + 1;
  }
  return absl::InvalidArgumentError(
      base::StrCat("the ", what_, " at line ", line, ", column ", column, ": ", message));
}

absl::StatusOr<char32_t> SourceReader::TakeHex(int digits) {
  char32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const int digit = AtEnd() ? -1 : HexValue(Peek());
    if (digit < 0) return Error(base::StrCat("expected ", digits, " hexadecimal digits"));
    value = value * 16 + static_cast<char32_t>(digit);
    Take();
  }
  if (value > kMaxCodePoint) return Error("this is beyond the last code point, 10FFFF");
  return value;
}

absl::StatusOr<int32_t> SourceReader::TakeNumber() {
  if (!IsDigit(Peek())) return Error("expected a number");
  int32_t value = 0;
  while (IsDigit(Peek())) {
    value = value * 10 + static_cast<int32_t>(Take() - U'0');
    if (value > kMaxRepeat) {
      return Error(base::StrCat("a repeat may count to ", kMaxRepeat, " at most"));
    }
  }
  return value;
}

absl::Status SourceReader::TakeBounds(int32_t* min, int32_t* max) {
  HEDDLE_ASSIGN_OR_RETURN(*min, TakeNumber());
  *max = *min;
  if (TakeIf(U',')) {
    *max = kUnbounded;
    if (Peek() != U'}') {
      HEDDLE_ASSIGN_OR_RETURN(*max, TakeNumber());
      if (*max < *min) return Error("the bounds of a repeat are the wrong way round");
    }
  }
  if (!TakeIf(U'}')) return Error("expected } after the bounds of a repeat");
  return absl::OkStatus();
}

absl::StatusOr<char32_t> SourceReader::TakeEscape() {
  if (AtEnd()) return Error("a backslash at the end");
  const char32_t c = Take();
  switch (c) {
    case U'n':
      return U'\n';
    case U'r':
      return U'\r';
    case U't':
      return U'\t';
    case U'f':
      return U'\f';
    case U'v':
      return U'\v';
    case U'x':
      return TakeHex(2);
    case U'U':
      return TakeHex(8);
    case U'u':
      break;
    default:
      if (!IsAlphanumeric(c)) return c;
      return Error(base::StrCat("unknown escape \\", std::string(1, static_cast<char>(c))));
  }
  HEDDLE_ASSIGN_OR_RETURN(char32_t first, TakeHex(4));
  if (first >= 0xD800 && first < 0xDC00 && Peek() == U'\\' && Peek(1) == U'u') {
    at_ += 2;
    HEDDLE_ASSIGN_OR_RETURN(const char32_t second, TakeHex(4));
    if (second >= 0xDC00 && second < 0xE000) {
      return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    return Error("a high surrogate must be followed by a low one");
  }
  if (first >= 0xD800 && first < 0xE000) return Error("a lone surrogate is no character");
  return first;
}

}  // namespace heddle::engine::grammar
