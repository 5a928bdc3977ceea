#include "engine/text/regex_scanners.h"

#include <array>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/unicode.h"

namespace heddle::engine::text {
namespace {

constexpr uint8_t kLNS = kLetter | kNumber | kWhiteSpace;

struct Known {
  std::string_view pattern;
  ScannerSpec spec;
};

constexpr std::array kKnown = {
    Known{kGpt2Pattern, {ScannerSpec::Shape::kGpt2, kLetter, kLNS, 0, true, false}},
    // Llama 3, GPT-4 (cl100k), GLM-4, SmolLM3, Granite 4
    Known{kCl100kPattern, {ScannerSpec::Shape::kCl100k, kLetter, kLNS, 3, true, false}},
    // Qwen 2, 2.5, 3
    Known{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
          " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
          {ScannerSpec::Shape::kCl100k, kLetter, kLNS, 1, true, false}},
    // Qwen 3.5
    Known{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
          " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
          {ScannerSpec::Shape::kCl100k, kLetter | kMark, kLNS | kMark, 1, true, false}},
    // GPT-4o, gpt-oss, Llama 4
    Known{
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        {ScannerSpec::Shape::kO200k, 0, kLNS, 3, true, true}},
    // Mistral's Tekken
    Known{
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
        "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        {ScannerSpec::Shape::kO200k, 0, kLNS, 1, false, true}},
    Known{kDeepseek3Pattern, {ScannerSpec::Shape::kDeepseek3, kLetter | kMark, 0, 0, false, false}},
};

// Scans one text from the left. Positions are byte offsets of code points.
class Scanner {
 public:
  Scanner(const ScannerSpec& spec, std::string_view text)
      : spec_(spec), classes_(CharClassTable::Get()), ascii_(classes_.ascii()), text_(text) {}

  // End of the piece that begins at `at`. REQUIRES: at < size of the text.
  size_t EndOfPiece(size_t at) const {
    switch (spec_.shape) {
      case ScannerSpec::Shape::kGpt2:
        return Gpt2(at);
      case ScannerSpec::Shape::kCl100k:
        return Cl100k(at);
      case ScannerSpec::Shape::kO200k:
        return O200k(at);
      case ScannerSpec::Shape::kDeepseek3:
        return Deepseek3OrGap(at);
    }
    return text_.size();
  }

 private:
  uint8_t Class(size_t at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    return byte < 0x80 ? ascii_[byte] : classes_[base::DecodeUtf8(text_.data() + at)];
  }
  bool Ends(size_t at) const { return at >= text_.size(); }
  bool Is(size_t at, uint8_t bits) const { return !Ends(at) && (Class(at) & bits) != 0; }
  bool IsOther(size_t at) const { return !Ends(at) && (Class(at) & spec_.not_other) == 0; }
  bool IsLineEnd(size_t at) const { return text_[at] == '\r' || text_[at] == '\n'; }
  size_t After(size_t at) const { return at + base::Utf8Size(text_[at]); }

  size_t Run(size_t at, uint8_t bits) const {
    while (Is(at, bits)) at = After(at);
    return at;
  }
  size_t RunOther(size_t at) const {
    while (IsOther(at)) at = After(at);
    return at;
  }

  // The letter of a contraction in any case; U+017F (long s) folds to s. `*size` gets its bytes.
  char FoldedLetter(size_t at, bool any_case, size_t* size) const {
    if (Ends(at)) return 0;
    *size = 1;
    char c = text_[at];
    if (!any_case) return c;
    if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
    if (text_.substr(at, 2) == "\xC5\xBF") {
      *size = 2;
      return 's';
    }
    return c;
  }

  // The end of 's|'t|'re|'ve|'m|'ll|'d at `at`, or `at` if there is none.
  size_t Contraction(size_t at, bool any_case) const {
    if (Ends(at) || text_[at] != '\'') return at;
    size_t size = 0;
    const char first = FoldedLetter(at + 1, any_case, &size);
    const size_t second_at = at + 1 + size;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return second_at;
    if (first != 'r' && first != 'v' && first != 'l') return at;
    const char second = FoldedLetter(second_at, any_case, &size);
    return second == (first == 'l' ? 'l' : 'e') ? second_at + size : at;
  }

  // The end of \s+(?!\S)|\s+ : white space up to the last one before a word.
  size_t Spaces(size_t at) const {
    size_t end = at;
    size_t last = at;
    while (Is(end, kWhiteSpace)) {
      last = end;
      end = After(end);
    }
    return Ends(end) || last == at ? end : last;
  }

  // The end of \s*[\r\n]+|\s+(?!\S)|\s+ .
  size_t SpacesOrLines(size_t at) const {
    size_t after_line = at;
    for (size_t end = at; Is(end, kWhiteSpace); end = After(end)) {
      if (IsLineEnd(end)) after_line = end + 1;
    }
    return after_line > at ? after_line : Spaces(at);
  }

  size_t Digits(size_t at) const {
    for (int32_t i = 0; i < spec_.max_digits && Is(at, kNumber); ++i) at = After(at);
    return at;
  }

  // The end of ` ?[^\s\p{L}\p{N}]+[\r\n]*`, or `at`.
  size_t Punctuation(size_t at) const {
    const size_t begin = at + (text_[at] == ' ');
    size_t end = RunOther(begin);
    if (end == begin) return at;
    while (!Ends(end) && (IsLineEnd(end) || (spec_.slash_in_tail && text_[end] == '/'))) ++end;
    return end;
  }

  size_t Gpt2(size_t at) const {
    if (text_[at] == '\'') {
      if (const size_t end = Contraction(at, false); end > at) return end;
    }
    const size_t begin = at + (text_[at] == ' ');
    if (!Ends(begin)) {
      const uint8_t bits = Class(begin);
      if ((bits & kLetter) != 0) return Run(begin, kLetter);
      if ((bits & kNumber) != 0) return Run(begin, kNumber);
      if ((bits & kWhiteSpace) == 0) return RunOther(begin);
    }
    return Spaces(at);
  }

  // Whether the code point may precede and join a word: [^\r\n\p{L}\p{N}].
  bool IsPrefix(size_t at, uint8_t bits) const {
    return (bits & (kLetter | kNumber)) == 0 && !IsLineEnd(at);
  }

  size_t Cl100k(size_t at) const {
    if (text_[at] == '\'') {
      if (const size_t end = Contraction(at, true); end > at) return end;
    }
    const uint8_t bits = Class(at);
    if (IsPrefix(at, bits)) {
      const size_t begin = After(at);
      if (Is(begin, spec_.letters)) return Run(begin, spec_.letters);
    }
    if ((bits & spec_.letters) != 0) return Run(at, spec_.letters);
    if ((bits & kNumber) != 0) return Digits(at);
    if (const size_t end = Punctuation(at); end > at) return end;
    return SpacesOrLines(at);
  }

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]: Lm and Lo have neither case bit.
  static bool IsUpperish(uint8_t bits) {
    return (bits & (kLetter | kMark)) != 0 && (bits & kLower) == 0;
  }
  static bool IsLowerish(uint8_t bits) {
    return (bits & (kLetter | kMark)) != 0 && (bits & kUpper) == 0;
  }

  // The end of Upperish* Lowerish+ from `at`, with backtracking into the first run, or `at`.
  size_t LowerWord(size_t at) const {
    size_t upper_end = at;
    size_t after_last_both = at;  // end of the first run's last code point that is in both sets
    while (!Ends(upper_end)) {
      const uint8_t bits = Class(upper_end);
      if (!IsUpperish(bits)) break;
      upper_end = After(upper_end);
      if (IsLowerish(bits)) after_last_both = upper_end;
    }
    size_t end = upper_end;
    while (!Ends(end) && IsLowerish(Class(end))) end = After(end);
    return end > upper_end ? end : after_last_both;
  }

  // The end of Upperish+, for use where LowerWord did not match.
  size_t UpperWord(size_t at) const {
    while (!Ends(at) && IsUpperish(Class(at))) at = After(at);
    return at;
  }

  // The first two alternatives: with the character before the word, then without; `at` if neither
  // matches.
  size_t CasedWord(size_t at, uint8_t bits) const {
    const size_t begin = IsPrefix(at, bits) ? After(at) : at;
    if (const size_t end = LowerWord(begin); end > begin) return end;
    if (const size_t end = LowerWord(at); end > at) return end;
    if (const size_t end = UpperWord(begin); end > begin) return end;
    return UpperWord(at);
  }

  size_t O200k(size_t at) const {
    const uint8_t bits = Class(at);
    if (const size_t end = CasedWord(at, bits); end > at) {
      return spec_.contractions ? Contraction(end, true) : end;
    }
    if ((bits & kNumber) != 0) return Digits(at);
    if (const size_t end = Punctuation(at); end > at) return end;
    return SpacesOrLines(at);
  }

  // `at` if nothing matches there.
  size_t Deepseek3(size_t at) const {
    constexpr uint8_t kSigns = kPunctuation | kSymbol;
    const uint8_t bits = Class(at);
    if (static_cast<unsigned char>(text_[at]) < 0x80 && (bits & kSigns) != 0) {
      size_t end = at + 1;
      while (!Ends(end) && static_cast<unsigned char>(text_[end]) < 0x80 && Is(end, kLetter)) ++end;
      if (end > at + 1) return end;
    }
    if ((bits & (kLetter | kSigns)) == 0 && !IsLineEnd(at)) {
      const size_t begin = After(at);
      if (Is(begin, spec_.letters)) return Run(begin, spec_.letters);
    }
    if ((bits & spec_.letters) != 0) return Run(at, spec_.letters);
    const size_t begin = at + (text_[at] == ' ');
    if (size_t end = Run(begin, kSigns); end > begin) {
      while (!Ends(end) && IsLineEnd(end)) ++end;
      return end;
    }
    return SpacesOrLines(at);
  }

  size_t Deepseek3OrGap(size_t at) const {
    size_t end = Deepseek3(at);
    if (end > at) return end;
    do {
      end = After(end);
    } while (!Ends(end) && Deepseek3(end) == end);
    return end;
  }

  const ScannerSpec& spec_;
  const CharClassTable& classes_;
  const uint8_t* ascii_;
  std::string_view text_;
};

}  // namespace

std::optional<ScannerSpec> FindScanner(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.spec;
  }
  return std::nullopt;
}

absl::Status Scan(const ScannerSpec& spec, std::string_view text,
                  absl::FunctionRef<absl::Status(std::string_view)> emit) {
  const Scanner scanner(spec, text);
  for (size_t at = 0; at < text.size();) {
    const size_t end = scanner.EndOfPiece(at);
    HEDDLE_RETURN_IF_ERROR(emit(text.substr(at, end - at)));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::text
