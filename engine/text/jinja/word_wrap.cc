#include "engine/text/jinja/word_wrap.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

using Characters = std::vector<char32_t>;

// textwrap knows the white space of ASCII alone: a no-break space holds words together.
bool IsWrapSpace(char32_t c) { return (c >= '\t' && c <= '\r') || c == ' '; }
bool IsWordCharacter(char32_t c) { return IsAlpha(c) || IsDigit(c) || c == '_'; }
bool IsLetter(char32_t c) { return IsAlpha(c) || c == '_'; }
// Characters that may stand before an em-dash.
bool IsWordPunctuation(char32_t c) {
  return IsWordCharacter(c) ||
         std::u32string_view(U"!\"'&.,?").find(c) != std::u32string_view::npos;
}

// A text between positions, which are valid or outside.
class Splitter {
 public:
  Splitter(const Characters& text, bool on_hyphens) : text_(text), on_hyphens_(on_hyphens) {}

  // The end of the piece that begins at `begin`: white space, an em-dash, or a word or a part of
  // one up to a hyphen. REQUIRES: begin < the text's size.
  size_t PieceEnd(size_t begin) const {
    size_t end = begin;
    if (IsWrapSpace(text_[begin])) {
      while (end < text_.size() && IsWrapSpace(text_[end])) ++end;
      return end;
    }
    if (on_hyphens_) {
      if (begin > 0 && IsWordPunctuation(text_[begin - 1])) end = DashesEnd(begin);
      if (end > begin) return end;
    }
    for (end = begin + 1; end < text_.size() && !IsWrapSpace(text_[end]); ++end) {
      if (!on_hyphens_) continue;
      if (text_[end] == '-' && IsHyphen(end)) return end + 1;
      if (IsWordPunctuation(text_[end - 1]) && DashesEnd(end) > end) return end;
    }
    return end;
  }

 private:
  bool LetterAt(size_t at) const { return at < text_.size() && IsLetter(text_[at]); }

  // The end of two or more dashes with a word behind them, or `begin` if there are none.
  size_t DashesEnd(size_t begin) const {
    size_t end = begin;
    while (end < text_.size() && text_[end] == '-') ++end;
    const bool is_dash = end - begin >= 2 && end < text_.size() && IsWordCharacter(text_[end]);
    return is_dash ? end : begin;
  }

  // Whether the hyphen at `at` joins two words that may be parted behind it: letters on both sides,
  // two of them unless one is joined by another hyphen.
  bool IsHyphen(size_t at) const {
    const bool before = at >= 2 && LetterAt(at - 1) &&
                        (LetterAt(at - 2) || (at >= 3 && text_[at - 2] == '-' && LetterAt(at - 3)));
    if (!before || !LetterAt(at + 1)) return false;
    return LetterAt(at + 2) || (at + 2 < text_.size() && text_[at + 2] == '-' && LetterAt(at + 3));
  }

  const Characters& text_;
  const bool on_hyphens_;
};

Characters Decode(std::string_view text) {
  Characters out;
  for (size_t pos = 0; pos < text.size();) out.push_back(NextCodePoint(text, &pos));
  return out;
}

struct Piece {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// Collects the pieces of one line after the other.
class Wrapper {
 public:
  Wrapper(const Characters& text, const WrapOptions& options) : text_(text), options_(options) {}

  std::vector<std::string> Lines() {
    const Splitter splitter(text_, options_.break_on_hyphens);
    for (size_t at = 0; at < text_.size();) {
      const size_t end = splitter.PieceEnd(at);
      Take({at, end});
      at = end;
    }
    EndLine();
    return std::move(lines_);
  }

 private:
  // Here all of Unicode's white space counts.
  bool IsBlank(const Piece& piece) const {
    return std::all_of(text_.begin() + static_cast<ptrdiff_t>(piece.begin),
                       text_.begin() + static_cast<ptrdiff_t>(piece.end), IsSpace);
  }
  size_t width() const { return static_cast<size_t>(options_.width); }

  void Take(Piece piece) {
    while (piece.size() > 0) {
      // White space at a line's beginning is dropped, except at the text's.
      if (line_.empty() && !lines_.empty() && IsBlank(piece)) return;
      if (line_size_ + piece.size() <= width()) {
        line_.push_back(piece);
        line_size_ += piece.size();
        return;
      }
      if (piece.size() > width()) {
        if (!TakePart(&piece)) return;
      }
      EndLine();
    }
  }

  // Takes of a piece that is longer than a line what has room, or all of it if it may not be broken
  // and the line is empty. Returns false if nothing is left of it.
  bool TakePart(Piece* piece) {
    const size_t room = width() - line_size_;
    size_t part = 0;
    if (options_.break_long_words) {
      part = room;
      if (options_.break_on_hyphens) part = BehindHyphen(*piece, room);
    } else if (line_.empty()) {
      part = piece->size();
    }
    // textwrap adds a piece even where there is no room for any of it, so that the white space
    // before it is not at the line's end, and stays.
    if (part == 0 && !options_.break_long_words) return true;
    line_.push_back({piece->begin, piece->begin + part});
    line_size_ += part;
    piece->begin += part;
    if (piece->size() > 0) return true;
    EndLine();
    return false;
  }

  // The number of characters up to the last hyphen within `room` that follows something else.
  size_t BehindHyphen(const Piece& piece, size_t room) const {
    if (piece.size() <= room) return room;
    for (size_t at = piece.begin + room; at-- > piece.begin + 1;) {
      if (text_[at] != '-') continue;
      for (size_t i = piece.begin; i < at; ++i) {
        if (text_[i] != '-') return at + 1 - piece.begin;
      }
      break;
    }
    return room;
  }

  void EndLine() {
    if (!line_.empty() && IsBlank(line_.back())) line_.pop_back();
    if (!line_.empty()) {
      std::string out;
      for (const Piece& piece : line_) {
        for (size_t i = piece.begin; i < piece.end; ++i) AppendCodePoint(text_[i], &out);
      }
      lines_.push_back(std::move(out));
    }
    line_.clear();
    line_size_ = 0;
  }

  const Characters& text_;
  const WrapOptions& options_;
  std::vector<std::string> lines_;
  std::vector<Piece> line_;
  size_t line_size_ = 0;
};

}  // namespace

std::vector<std::string> WrapLine(std::string_view line, const WrapOptions& options) {
  const Characters text = Decode(line);
  return Wrapper(text, options).Lines();
}

}  // namespace heddle::engine::text::jinja
