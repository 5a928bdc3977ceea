#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}
bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameByte(char c) { return IsNameStart(c) || IsAsciiDigit(c); }

// Undoes the escapes of a Python text literal.
class Unescaper {
 public:
  explicit Unescaper(std::string_view text) : text_(text) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < text_.size()) {
      if (text_[pos_] != '\\' || pos_ + 1 == text_.size()) {
        out_.push_back(text_[pos_++]);
        continue;
      }
      ++pos_;
      HEDDLE_RETURN_IF_ERROR(Escape());
    }
    return std::move(out_);
  }

 private:
  absl::Status Escape() {
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    char c = text_[pos_];
    if (size_t at = kNames.find(c); at != kNone) {
      out_.push_back(kValues[at]);
      ++pos_;
    } else if (c == '\n') {
      ++pos_;  // an escaped line end joins the lines
    } else if (c == 'x') {
      return Hex(2);
    } else if (c == 'u') {
      return Hex(4);
    } else if (c == 'U') {
      return Hex(8);
    } else if (c >= '0' && c <= '7') {
      Octal();
    } else if (c == 'N') {
      return absl::InvalidArgumentError("\\N{...} escapes are not supported");
    } else {
      out_.push_back('\\');  // an unknown escape is kept as it is
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Digits(size_t count) {
    uint32_t value = 0;
    if (pos_ + count > text_.size()) return absl::InvalidArgumentError("truncated escape");
    const char* begin = text_.data() + pos_;
    auto [end, error] = std::from_chars(begin, begin + count, value, 16);
    if (error != std::errc() || end != begin + count) {
      return absl::InvalidArgumentError("truncated escape");
    }
    pos_ += count;
    return value;
  }

  absl::Status Hex(size_t count) {
    ++pos_;
    HEDDLE_ASSIGN_OR_RETURN(uint32_t value, Digits(count));
    bool high = value >= 0xD800 && value < 0xDC00;
    if (high && count == 4 && text_.substr(pos_).starts_with("\\u")) {
      pos_ += 2;
      HEDDLE_ASSIGN_OR_RETURN(uint32_t low, Digits(4));
      if (low >= 0xDC00 && low < 0xE000) value = 0x10000 + ((value - 0xD800) << 10) + low - 0xDC00;
    }
    if (value > 0x10FFFF) return absl::InvalidArgumentError("illegal Unicode character");
    AppendCodePoint(value, &out_);
    return absl::OkStatus();
  }

  void Octal() {
    uint32_t value = 0;
    for (int i = 0; i < 3 && pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '7'; ++i) {
      value = value * 8 + static_cast<uint32_t>(text_[pos_++] - '0');
    }
    AppendCodePoint(value, &out_);
  }

  std::string_view text_;
  size_t pos_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run();

 private:
  enum class TagKind : uint8_t { kVariable, kBlock, kComment };

  char At(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  bool StartsWith(size_t i, std::string_view text) const {
    return source_.substr(std::min(i, source_.size())).starts_with(text);
  }
  void Push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  // Moves to `end`, counting lines.
  void MoveTo(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    pos_ = end;
  }
  size_t AfterSpace(size_t i) const {
    return source_.size() - StripLeft(source_.substr(std::min(i, source_.size()))).size();
  }
  // Moves behind the end of a tag, applying its whitespace control.
  void MovePastTagEnd(size_t end, bool strip, bool trim_newline) {
    size_t next = strip ? AfterSpace(end) : trim_newline && At(end) == '\n' ? end + 1 : end;
    MoveTo(next);
    line_starting_ = next > 0 && source_[next - 1] == '\n';
  }

  std::string_view StripBeforeTag(std::string_view text, char sign, bool variable) const;
  size_t FindTag(size_t from) const;
  absl::StatusOr<bool> LexRaw(size_t tag, char sign);
  absl::Status LexComment();
  absl::Status LexTag(TagKind kind);
  absl::StatusOr<bool> LexTagEnd(TagKind kind);
  absl::Status LexToken();
  absl::Status LexNumber();
  absl::Status LexText();
  absl::Status LexOperator();

  std::string_view source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string brackets_;  // closing brackets still expected
  std::vector<Token> tokens_;
};

size_t Lexer::FindTag(size_t from) const {
  for (size_t i = source_.find('{', from); i != kNone; i = source_.find('{', i + 1)) {
    char next = At(i + 1);
    if (next == '{' || next == '%' || next == '#') return i;
  }
  return kNone;
}

std::string_view Lexer::StripBeforeTag(std::string_view text, char sign, bool variable) const {
  if (sign == '-') return StripRight(text);
  if (sign == '+' || variable) return text;
  size_t line_end = text.rfind('\n');
  if (line_end == kNone && !line_starting_) return text;
  size_t line_begin = line_end == kNone ? 0 : line_end + 1;
  bool blank = StripLeft(text.substr(line_begin)).empty();
  return blank ? text.substr(0, line_begin) : text;
}

absl::StatusOr<std::vector<Token>> Lexer::Run() {
  while (pos_ < source_.size()) {
    size_t tag = FindTag(pos_);
    if (tag == kNone) {
      Push(TokenKind::kData, std::string(source_.substr(pos_)));
      MoveTo(source_.size());
      break;
    }
    char open = source_[tag + 1];
    TagKind kind = open == '{'   ? TagKind::kVariable
                   : open == '%' ? TagKind::kBlock
                                 : TagKind::kComment;
    char sign = At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : '\0';
    std::string_view text =
        StripBeforeTag(source_.substr(pos_, tag - pos_), sign, kind == TagKind::kVariable);
    if (!text.empty()) Push(TokenKind::kData, std::string(text));
    MoveTo(tag);
    if (kind == TagKind::kBlock) {
      HEDDLE_ASSIGN_OR_RETURN(bool raw, LexRaw(tag, sign));
      if (raw) continue;
    }
    MoveTo(tag + (sign != '\0' ? 3 : 2));
    HEDDLE_RETURN_IF_ERROR(kind == TagKind::kComment ? LexComment() : LexTag(kind));
  }
  Push(TokenKind::kEnd, "");
  return std::move(tokens_);
}

// Lexes {% raw %} ... {% endraw %}, whose content is output. Returns false if no raw tag starts at
// `tag`.
absl::StatusOr<bool> Lexer::LexRaw(size_t tag, char sign) {
  size_t i = AfterSpace(tag + (sign != '\0' ? 3 : 2));
  if (!StartsWith(i, "raw")) return false;
  i = AfterSpace(i + 3);
  bool strip = StartsWith(i, "-%}");
  if (!strip && !StartsWith(i, "%}")) return false;
  int begin_line = line_;
  MovePastTagEnd(i + (strip ? 3 : 2), strip, /*trim_newline=*/false);
  for (size_t end = source_.find("{%", pos_); end != kNone; end = source_.find("{%", end + 2)) {
    char end_sign = At(end + 2) == '-' || At(end + 2) == '+' ? At(end + 2) : '\0';
    size_t j = AfterSpace(end + (end_sign != '\0' ? 3 : 2));
    if (!StartsWith(j, "endraw")) continue;
    j = AfterSpace(j + 6);
    char close_sign = At(j) == '-' || At(j) == '+' ? At(j) : '\0';
    if (close_sign != '\0') ++j;
    if (!StartsWith(j, "%}")) continue;
    std::string_view text = StripBeforeTag(source_.substr(pos_, end - pos_), end_sign, false);
    if (!text.empty()) Push(TokenKind::kData, std::string(text));
    MovePastTagEnd(j + 2, close_sign == '-', close_sign == '\0');
    return true;
  }
  return SyntaxError(begin_line, "Missing end of raw directive");
}

absl::Status Lexer::LexComment() {
  size_t end = source_.find("#}", pos_);
  if (end == kNone) return SyntaxError(line_, "Missing end of comment tag");
  char sign = end > pos_ ? source_[end - 1] : '\0';
  MovePastTagEnd(end + 2, sign == '-', sign != '+');
  return absl::OkStatus();
}

absl::Status Lexer::LexTag(TagKind kind) {
  Push(kind == TagKind::kBlock ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
  int begin_line = line_;
  brackets_.clear();
  while (true) {
    MoveTo(AfterSpace(pos_));
    if (pos_ >= source_.size()) {
      return SyntaxError(begin_line, base::StrCat("the tag that begins here has no end '",
                                                  kind == TagKind::kBlock ? "%}" : "}}", "'"));
    }
    HEDDLE_ASSIGN_OR_RETURN(bool ended, LexTagEnd(kind));
    if (ended) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(LexToken());
  }
}

absl::StatusOr<bool> Lexer::LexTagEnd(TagKind kind) {
  if (!brackets_.empty()) return false;
  std::string_view close = kind == TagKind::kBlock ? "%}" : "}}";
  char sign = At(pos_);
  bool signed_end =
      (sign == '-' || (sign == '+' && kind == TagKind::kBlock)) && StartsWith(pos_ + 1, close);
  if (!signed_end && !StartsWith(pos_, close)) return false;
  Push(kind == TagKind::kBlock ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
  MovePastTagEnd(pos_ + (signed_end ? 3 : 2), signed_end && sign == '-',
                 kind == TagKind::kBlock && !signed_end);
  return true;
}

absl::Status Lexer::LexToken() {
  char c = source_[pos_];
  if (IsAsciiDigit(c)) return LexNumber();
  if (c == '\'' || c == '"') return LexText();
  if (!IsNameStart(c)) return LexOperator();
  size_t end = pos_;
  while (end < source_.size() && IsNameByte(source_[end])) ++end;
  Push(TokenKind::kName, std::string(source_.substr(pos_, end - pos_)));
  MoveTo(end);
  return absl::OkStatus();
}

absl::Status Lexer::LexNumber() {
  auto digits = [this](size_t i) {
    while (IsAsciiDigit(At(i)) || (At(i) == '_' && IsAsciiDigit(At(i + 1)))) ++i;
    return i;
  };
  size_t end = digits(pos_);
  bool real = false;
  bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';  // `a.0.1` is two subscripts
  int base = 10;
  char marker = static_cast<char>(At(pos_ + 1) | 0x20);
  if (source_[pos_] == '0' && (marker == 'x' || marker == 'o' || marker == 'b')) {
    base = marker == 'x' ? 16 : marker == 'o' ? 8 : 2;
    end = pos_ + 2;
    while (IsNameByte(At(end))) ++end;
  } else if (!after_dot) {
    if (At(end) == '.' && IsAsciiDigit(At(end + 1))) {
      real = true;
      end = digits(end + 1);
    }
    size_t exponent = end + 1;
    if (At(exponent) == '+' || At(exponent) == '-') ++exponent;
    if ((At(end) | 0x20) == 'e' && IsAsciiDigit(At(exponent))) {
      real = true;
      end = digits(exponent);
    }
  }
  std::string text(source_.substr(pos_, end - pos_));
  std::erase(text, '_');
  Token token{real ? TokenKind::kFloat : TokenKind::kInteger, line_, text};
  if (real) {
    token.real = std::strtod(text.c_str(), nullptr);
  } else {
    const char* begin = text.data() + (base == 10 ? 0 : 2);
    auto [stop, error] = std::from_chars(begin, text.data() + text.size(), token.integer, base);
    if (error != std::errc() || stop != text.data() + text.size()) {
      return SyntaxError(line_, base::StrCat("'", text, "' is not an integer of at most 64 bits"));
    }
  }
  tokens_.push_back(std::move(token));
  MoveTo(end);
  return absl::OkStatus();
}

absl::Status Lexer::LexText() {
  char quote = source_[pos_];
  size_t end = pos_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) {
    return SyntaxError(
        line_, base::StrCat("the text that begins with ", std::string(1, quote), " has no end"));
  }
  absl::StatusOr<std::string> text = Unescaper(source_.substr(pos_ + 1, end - pos_ - 1)).Run();
  if (!text.ok()) return SyntaxError(line_, std::string(text.status().message()));
  Push(TokenKind::kString, *std::move(text));
  MoveTo(end + 1);
  return absl::OkStatus();
}

absl::Status Lexer::LexOperator() {
  static constexpr std::array<std::string_view, 24> kOperators = {
      "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~",
      "<",  ">",  "=",  ".",  ":",  ";",  ",", "|", "(", ")", "[", "]"};
  std::string_view op;
  for (std::string_view candidate : kOperators) {
    if (StartsWith(pos_, candidate)) {
      op = candidate;
      break;
    }
  }
  char c = source_[pos_];
  if (c == '{' || c == '}') op = source_.substr(pos_, 1);
  if (op.empty()) {
    size_t end = pos_;
    NextCodePoint(source_, &end);
    return SyntaxError(line_,
                       base::StrCat("unexpected char '", source_.substr(pos_, end - pos_), "'"));
  }
  if (c == '(') brackets_.push_back(')');
  if (c == '[') brackets_.push_back(']');
  if (c == '{') brackets_.push_back('}');
  if (c == ')' || c == ']' || c == '}') {
    if (brackets_.empty()) {
      return SyntaxError(line_, base::StrCat("unexpected '", op, "'"));
    }
    if (brackets_.back() != c) {
      return SyntaxError(line_, base::StrCat("unexpected '", op, "', expected '",
                                             std::string(1, brackets_.back()), "'"));
    }
    brackets_.pop_back();
  }
  Push(TokenKind::kOperator, std::string(op));
  MoveTo(pos_ + op.size());
  return absl::OkStatus();
}

}  // namespace

absl::Status SyntaxError(int line, std::string_view message) {
  return absl::InvalidArgumentError(base::StrCat("line ", line, ": ", message));
}

std::string NormalizeSource(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace heddle::engine::text::jinja
