// A cursor over the text of a grammar or a regular expression, code point by code point, with the
// escapes that both share.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

class SourceReader {
 public:
  // INVALID_ARGUMENT if the text is too long or not UTF-8. `what` names the text in messages.
  static absl::StatusOr<SourceReader> Create(std::string_view text, std::string_view what);

  bool AtEnd() const { return at_ == text_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  char32_t Take() { return text_[at_++]; }  // REQUIRES: !AtEnd()
  bool TakeIf(char32_t c);
  bool TakeIf(std::u32string_view word);
  size_t position() const { return at_; }
  void ReturnTo(size_t position) { at_ = position; }

  // INVALID_ARGUMENT with a message like "line 3, column 7 of the grammar: ...".
  absl::Status Error(std::string_view message) const;

  // Reads exactly `digits` hexadecimal digits.
  absl::StatusOr<char32_t> TakeHex(int digits);
  // Reads a decimal number, at most kMaxRepeat.
  absl::StatusOr<int32_t> TakeNumber();
  // Reads {m}, {m,} or {m,n} behind the brace.
  absl::Status TakeBounds(int32_t* min, int32_t* max);
  // Reads an escape behind its backslash: n, r, t, f, v (b is left to the caller); xHH, uHHHH
  // (pairs of surrogates are one code point), UHHHHHHHH; other characters except letters and digits
  // stand for themselves.
  absl::StatusOr<char32_t> TakeEscape();

 private:
  SourceReader(std::u32string text, std::string_view what) : text_(std::move(text)), what_(what) {}

  std::u32string text_;
  std::string what_;
  size_t at_ = 0;
};

}  // namespace heddle::engine::grammar
