#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/unicode_properties.h"

#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/message.h"
#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

// PCRE2 reads names loosely; anything but these characters could end the escape.
bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == ':';
}

// Every code point but surrogates, in order.
std::string AllCodePoints() {
  std::string text;
  text.reserve(4 * size_t{kLastCodePoint});
  for (char32_t c = 0; c <= kLastCodePoint; c = c == 0xD7FF ? 0xE000 : c + 1) {
    base::AppendUtf8(c, &text);
  }
  return text;
}

// The code point whose bytes end before `end`.
char32_t Before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return base::DecodeUtf8(text.data() + begin);
}

}  // namespace

std::vector<std::pair<char32_t, char32_t>> RangesOfProperty(std::string_view name) {
  std::vector<std::pair<char32_t, char32_t>> ranges;
  if (!std::all_of(name.begin(), name.end(), IsNameCharacter)) return ranges;
  const std::string pattern = base::StrCat("\\p{", name, "}++");
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, FreeCode> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error,
                    &offset, nullptr));
  if (code == nullptr) return ranges;
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // if it cannot, the interpreter is slower
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  const std::string text = AllCodePoints();
  size_t from = 0;
  while (match != nullptr &&
         pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
    const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(match.get());
    ranges.emplace_back(base::DecodeUtf8(text.data() + found[0]), Before(text, found[1]));
    from = found[1];
  }
  return ranges;
}

}  // namespace heddle::engine::text
