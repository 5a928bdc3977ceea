#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "engine/text/utf8.h"

namespace heddle::engine::text {
namespace {

constexpr char32_t kCodePoints = 0x110000;

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

uint8_t CategoryBits(char32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    default:
      return 0;
  }
}

utf8proc_option_t OptionsFor(NormalForm form) {
  switch (form) {
    case NormalForm::kNfc:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case NormalForm::kNfd:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case NormalForm::kNfkc:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case NormalForm::kNfkd:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  return UTF8PROC_STABLE;
}

}  // namespace

const CharClassTable& CharClassTable::Get() {
  static const CharClassTable table;
  return table;
}

CharClassTable::CharClassTable() {
  std::vector<std::array<uint8_t, 256>> blocks;
  std::map<std::array<uint8_t, 256>, uint16_t> known;
  std::array<uint8_t, 256> block;
  for (char32_t first = 0; first < kCodePoints; first += 256) {
    for (char32_t i = 0; i < 256; ++i) {
      block[i] = static_cast<uint8_t>(CategoryBits(first + i) |
                                      (IsWhiteSpace(first + i) ? kWhiteSpace : 0));
    }
    const auto [entry, is_new] = known.try_emplace(block, static_cast<uint16_t>(blocks.size()));
    if (is_new) blocks.push_back(block);
    block_of_[first >> 8] = entry->second;
  }
  blocks_ = std::make_unique<std::array<uint8_t, 256>[]>(blocks.size());
  std::copy(blocks.begin(), blocks.end(), blocks_.get());
}

bool IsSurelyNormalized(std::string_view text, NormalForm form) {
  // Below U+0300 (lead byte CC) nothing composes with what precedes it, so NFC is the text itself.
  // The other forms change Latin-1 letters or compatibility characters already.
  const unsigned char limit = form == NormalForm::kNfc ? 0xCC : 0x80;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= limit) return false;
  }
  return true;
}

std::string Normalize(std::string_view text, NormalForm form) {
  if (IsSurelyNormalized(text, form)) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, OptionsFor(form));
  if (size < 0) return std::string(text);  // not well-formed, which the caller excludes
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return out;
}

std::string ToLowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += Utf8Size(text[at])) {
    const char32_t c = DecodeUtf8(text.data() + at);
    if (c == 0x130) {  // the one code point whose unconditional lower case is two code points
      out.append("i\xCC\x87");
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
    }
  }
  return out;
}

std::string RemoveMarks(std::string_view text) {
  const CharClassTable& classes = CharClassTable::Get();
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t size = Utf8Size(text[at]);
    if ((classes[DecodeUtf8(text.data() + at)] & kMark) == 0) out.append(text.substr(at, size));
    at += size;
  }
  return out;
}

bool IsGraphemeBreak(char32_t before, char32_t after, int32_t* state) {
  utf8proc_int32_t carried = *state;
  const bool is_break =
      utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                       static_cast<utf8proc_int32_t>(after), &carried) != 0;
  *state = carried;
  return is_break;
}

}  // namespace heddle::engine::text
