#include "engine/text/jinja/character_references.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/unicode.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {
namespace {

// Names of the characters from 160 to 255, which browsers know without a semicolon, too.
constexpr std::string_view kLatin1[] = {
    "nbsp",   "iexcl",  "cent",   "pound",  "curren", "yen",    "brvbar", "sect",   "uml",
    "copy",   "ordf",   "laquo",  "not",    "shy",    "reg",    "macr",   "deg",    "plusmn",
    "sup2",   "sup3",   "acute",  "micro",  "para",   "middot", "cedil",  "sup1",   "ordm",
    "raquo",  "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc",  "Atilde",
    "Auml",   "Aring",  "AElig",  "Ccedil", "Egrave", "Eacute", "Ecirc",  "Euml",   "Igrave",
    "Iacute", "Icirc",  "Iuml",   "ETH",    "Ntilde", "Ograve", "Oacute", "Ocirc",  "Otilde",
    "Ouml",   "times",  "Oslash", "Ugrave", "Uacute", "Ucirc",  "Uuml",   "Yacute", "THORN",
    "szlig",  "agrave", "aacute", "acirc",  "atilde", "auml",   "aring",  "aelig",  "ccedil",
    "egrave", "eacute", "ecirc",  "euml",   "igrave", "iacute", "icirc",  "iuml",   "eth",
    "ntilde", "ograve", "oacute", "ocirc",  "otilde", "ouml",   "divide", "oslash", "ugrave",
    "uacute", "ucirc",  "uuml",   "yacute", "thorn",  "yuml"};
static_assert(std::size(kLatin1) == 96);

struct Named {
  std::string_view name;
  char32_t character;
  bool needs_semicolon;
};
constexpr Named kNamed[] = {
    {"amp", '&', false},     {"AMP", '&', false},     {"lt", '<', false},
    {"LT", '<', false},      {"gt", '>', false},      {"GT", '>', false},
    {"quot", '"', false},    {"QUOT", '"', false},    {"COPY", 0xA9, false},
    {"REG", 0xAE, false},    {"apos", '\'', true},    {"hellip", 0x2026, true},
    {"ndash", 0x2013, true}, {"mdash", 0x2014, true}, {"lsquo", 0x2018, true},
    {"rsquo", 0x2019, true}, {"sbquo", 0x201A, true}, {"ldquo", 0x201C, true},
    {"rdquo", 0x201D, true}, {"bdquo", 0x201E, true}, {"bull", 0x2022, true},
    {"euro", 0x20AC, true},  {"trade", 0x2122, true}, {"ensp", 0x2002, true},
    {"emsp", 0x2003, true},  {"zwnj", 0x200C, true},  {"zwj", 0x200D, true},
    {"larr", 0x2190, true},  {"uarr", 0x2191, true},  {"rarr", 0x2192, true},
    {"darr", 0x2193, true},  {"le", 0x2264, true},    {"ge", 0x2265, true},
    {"ne", 0x2260, true},    {"minus", 0x2212, true}, {"infin", 0x221E, true}};

std::optional<Named> FindName(std::string_view name) {
  for (const Named& named : kNamed) {
    if (named.name == name) return named;
  }
  const auto* latin = std::find(std::begin(kLatin1), std::end(kLatin1), name);
  if (latin == std::end(kLatin1)) return std::nullopt;
  return Named{name, static_cast<char32_t>(160 + (latin - std::begin(kLatin1))), false};
}

// The numbers from 128 to 159 stand for the characters of Windows-1252. 0: for themselves.
constexpr char32_t kWindows1252[32] = {
    0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0,      0x017D, 0,      0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

void AppendNumbered(uint32_t number, std::string* out) {
  if (number == 0 || (number >= 0xD800 && number <= 0xDFFF) || number > 0x10FFFF) {
    AppendCodePoint(0xFFFD, out);
    return;
  }
  if (number >= 128 && number < 160) {
    const char32_t mapped = kWindows1252[number - 128];
    AppendCodePoint(mapped == 0 ? number : mapped, out);
    return;
  }
  // Controls and code points that are no characters disappear.
  const bool is_control = number < 9 || number == 0xB || (number >= 0xE && number < 0x20);
  const bool is_none = (number >= 0xFDD0 && number <= 0xFDEF) || (number & 0xFFFE) == 0xFFFE;
  if (!is_control && number != 0x7F && !is_none) AppendCodePoint(number, out);
}

int DigitOf(char c, int base) {
  int digit = -1;
  if (c >= '0' && c <= '9') digit = c - '0';
  if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
  if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
  return digit < base ? digit : -1;
}

// Appends the character of "#65;" and returns how long that is; 0: it is none.
size_t TakeNumber(std::string_view rest, std::string* out) {
  const bool is_hex = rest.size() > 1 && (rest[1] == 'x' || rest[1] == 'X');
  const size_t begin = is_hex ? 2 : 1;
  size_t end = begin;
  uint32_t number = 0;
  for (; end < rest.size(); ++end) {
    const int digit = DigitOf(rest[end], is_hex ? 16 : 10);
    if (digit < 0) break;
    number =
        std::min<uint32_t>(number * (is_hex ? 16 : 10) + static_cast<uint32_t>(digit), 0x110000);
  }
  if (end == begin) return 0;
  AppendNumbered(number, out);
  return end < rest.size() && rest[end] == ';' ? end + 1 : end;
}

// The same for "amp;". A name without a semicolon may be the beginning of a word.
absl::StatusOr<size_t> TakeName(std::string_view rest, std::string* out) {
  constexpr size_t kMaxName = 32;
  size_t end = 0;
  while (end < std::min(rest.size(), kMaxName) && absl::ascii_isalnum(rest[end])) ++end;
  const bool has_semicolon = end < rest.size() && rest[end] == ';';
  if (const auto named = FindName(rest.substr(0, end)); named.has_value() && has_semicolon) {
    AppendCodePoint(named->character, out);
    return end + 1;
  }
  for (size_t size = end; size > 1; --size) {
    const auto named = FindName(rest.substr(0, size));
    if (!named.has_value() || named->needs_semicolon) continue;
    AppendCodePoint(named->character, out);
    return size;
  }
  if (has_semicolon && end > 0) {
    return TemplateError(base::StrCat("striptags does not know the character reference '&",
                                      rest.substr(0, end), ";'"));
  }
  return size_t{0};
}

}  // namespace

absl::StatusOr<std::string> ReplaceCharacterReferences(std::string_view text) {
  std::string out;
  size_t pos = 0;
  while (true) {
    const size_t at = text.find('&', pos);
    out.append(text.substr(pos, at - pos));
    if (at == text.npos) return out;
    const std::string_view rest = text.substr(at + 1);
    size_t taken = 0;
    if (rest.starts_with('#')) {
      taken = TakeNumber(rest, &out);
    } else {
      HEDDLE_ASSIGN_OR_RETURN(taken, TakeName(rest, &out));
    }
    if (taken == 0) out.push_back('&');
    pos = at + 1 + taken;
  }
}

}  // namespace heddle::engine::text::jinja
