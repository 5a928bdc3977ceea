#include "engine/text/jinja/unicode.h"

#include <string.h>  // memmem
#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <memory>

#include "base/utf8.h"

namespace heddle::engine::text::jinja {
namespace {

using CaseFunction = int32_t (*)(const UCaseMap*, char*, int32_t, const char*, int32_t,
                                 UErrorCode*);

std::string MapCase(std::string_view text, CaseFunction function) {
  UErrorCode error = U_ZERO_ERROR;
  std::unique_ptr<UCaseMap, decltype(&ucasemap_close)> map(ucasemap_open("", 0, &error),
                                                           &ucasemap_close);
  std::string out(text.size() * 3 + 3, '\0');  // no full case mapping grows more than threefold
  int32_t size = function(map.get(), out.data(), static_cast<int32_t>(out.size()), text.data(),
                          static_cast<int32_t>(text.size()), &error);
  if (U_FAILURE(error)) return std::string(text);
  out.resize(static_cast<size_t>(size));
  return out;
}

bool Among(char32_t c, std::string_view chars) {
  for (size_t pos = 0; pos < chars.size();) {
    if (NextCodePoint(chars, &pos) == c) return true;
  }
  return false;
}

size_t PreviousStart(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  size_t pos = start;
  NextCodePoint(text, &pos);
  return pos == end ? start : end - 1;
}

template <typename Predicate>
std::string_view StripLeftIf(std::string_view text, Predicate strip) {
  size_t start = 0;
  while (start < text.size()) {
    size_t pos = start;
    if (!strip(NextCodePoint(text, &pos))) break;
    start = pos;
  }
  return text.substr(start);
}

template <typename Predicate>
std::string_view StripRightIf(std::string_view text, Predicate strip) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = PreviousStart(text, end);
    size_t pos = start;
    if (!strip(NextCodePoint(text, &pos))) break;
    end = start;
  }
  return text.substr(0, end);
}

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t* pos) {
  const size_t length = base::Utf8SequenceLength(text.substr(*pos));
  const size_t begin = *pos;
  *pos += length == 0 ? 1 : length;
  return length == 0 ? 0xFFFD : base::DecodeUtf8(text.data() + begin);
}

void AppendCodePoint(char32_t c, std::string* out) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
  base::AppendUtf8(c, out);
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

size_t CountCodePoints(std::string_view text) {
  return IsAscii(text) ? text.size() : base::CountCodePoints(text);
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) NextCodePoint(text, &pos);
  return pos;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  int8_t type = u_charType(static_cast<UChar32>(c));
  return type != U_UNASSIGNED && type != U_CONTROL_CHAR && type != U_FORMAT_CHAR &&
         type != U_PRIVATE_USE_CHAR && type != U_SURROGATE && type != U_SPACE_SEPARATOR &&
         type != U_LINE_SEPARATOR && type != U_PARAGRAPH_SEPARATOR;
}

bool IsUpper(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0;
}
bool IsLower(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0;
}
bool IsAlpha(char32_t c) { return u_isalpha(static_cast<UChar32>(c)) != 0; }
bool IsDigit(char32_t c) { return u_isdigit(static_cast<UChar32>(c)) != 0; }

std::string ToUpper(std::string_view text) {
  if (!IsAscii(text)) return MapCase(text, ucasemap_utf8ToUpper);
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return out;
}

std::string ToLower(std::string_view text) {
  if (!IsAscii(text)) return MapCase(text, ucasemap_utf8ToLower);
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

std::string ToTitle(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    UChar32 c = static_cast<UChar32>(NextCodePoint(text, &pos));
    AppendCodePoint(static_cast<char32_t>(after_cased ? u_tolower(c) : u_totitle(c)), &out);
    after_cased = u_hasBinaryProperty(c, UCHAR_CASED) != 0;
  }
  return out;
}

std::string Capitalize(std::string_view text) {
  if (text.empty()) return "";
  size_t rest = 0;
  char32_t first = NextCodePoint(text, &rest);
  std::string out;
  AppendCodePoint(static_cast<char32_t>(u_totitle(static_cast<UChar32>(first))), &out);
  return out + ToLower(text.substr(rest));
}

std::string_view StripLeft(std::string_view text) { return StripLeftIf(text, IsSpace); }
std::string_view StripRight(std::string_view text) { return StripRightIf(text, IsSpace); }
std::string_view StripLeft(std::string_view text, std::string_view chars) {
  return StripLeftIf(text, [chars](char32_t c) { return Among(c, chars); });
}
std::string_view StripRight(std::string_view text, std::string_view chars) {
  return StripRightIf(text, [chars](char32_t c) { return Among(c, chars); });
}

size_t Find(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* at = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (at == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

}  // namespace heddle::engine::text::jinja
