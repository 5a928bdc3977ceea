#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <vector>

#include "base/utf8.h"

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

// Code points from U+0300 on that NFC does not change and that do not compose with what precedes
// them (UAX #15: NFC_Quick_Check is Yes, the combining class 0). They are the common ones beside
// ASCII and Latin, not all; ascending.
constexpr struct {
  char32_t first;
  char32_t last;
} kInertInNfc[] = {
    {0x0391, 0x03A1},    // Greek capitals
    {0x03A3, 0x03CE},    // Greek
    {0x0400, 0x0482},    // Cyrillic
    {0x2010, 0x2027},    // dashes, quotation marks, bullets
    {0x2030, 0x205E},    // per mille, primes, more punctuation
    {0x20A0, 0x20C0},    // currencies
    {0x2190, 0x2328},    // arrows, mathematical operators, technical signs
    {0x2460, 0x27BF},    // enclosed numbers, box drawing, shapes, dingbats
    {0x3001, 0x3029},    // punctuation of Chinese and Japanese
    {0x3041, 0x3096},    // Hiragana
    {0x30A1, 0x30FE},    // Katakana
    {0x4E00, 0x9FFC},    // Chinese characters
    {0xAC00, 0xD7A3},    // Hangul syllables
    {0xFF01, 0xFFEE},    // full and half width forms
    {0x1F300, 0x1F64F},  // pictographs, emoticons
    {0x1F680, 0x1F6D7},  // transport
    {0x1F900, 0x1F978},  // more pictographs
};

bool IsInertInNfc(char32_t c) {
  const auto* range =
      std::lower_bound(std::begin(kInertInNfc), std::end(kInertInNfc), c,
                       [](const auto& r, char32_t value) { return r.last < value; });
  return range != std::end(kInertInNfc) && c >= range->first;
}

// The number of leading bytes of `text` that are certainly in that form, whatever follows, except
// that the last code point may compose.
size_t SureSize(std::string_view text, NormalForm form) {
  // Nothing below U+0300 (lead byte CC) composes with what precedes it, so NFC leaves such text
  // alone. The other forms change Latin-1 letters or compatibility characters.
  const bool nfc = form == NormalForm::kNfc;
  const unsigned char limit = nfc ? 0xCC : 0x80;
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < limit) {
      ++at;
      continue;
    }
    if (!nfc || !IsInertInNfc(base::DecodeUtf8(text.data() + at))) break;
    at += base::Utf8Size(text[at]);
  }
  return at;
}

// Sorts combining marks canonically (Unicode 15, section 3.11). utf8proc's own sort exchanges
// neighbours and takes quadratic time in their number, which the client chooses.
void OrderMarks(std::vector<utf8proc_int32_t>* code_points) {
  const auto mark_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  const auto is_mark = [&](utf8proc_int32_t c) { return mark_class(c) != 0; };
  for (auto begin = code_points->begin(); begin != code_points->end();) {
    begin = std::find_if(begin, code_points->end(), is_mark);
    const auto end = std::find_if_not(begin, code_points->end(), is_mark);
    std::stable_sort(begin, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return mark_class(a) < mark_class(b);
    });
    begin = end;
  }
}

// The same as utf8proc_map, except for the sorting of marks.
std::string Map(std::string_view text, NormalForm form) {
  constexpr utf8proc_ssize_t kMost = 32;  // of one code point; U+FDFA becomes 18
  const utf8proc_option_t options = OptionsFor(form);
  std::vector<utf8proc_int32_t> mapped;
  mapped.reserve(text.size());
  int boundary = 0;
  for (size_t at = 0; at < text.size(); at += base::Utf8Size(text[at])) {
    utf8proc_int32_t parts[kMost];
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(base::DecodeUtf8(text.data() + at)),
                                parts, kMost, options, &boundary);
    if (count < 0 || count > kMost) return std::string(text);  // no code point: excluded
    mapped.insert(mapped.end(), parts, parts + count);
  }
  OrderMarks(&mapped);
  const utf8proc_ssize_t size = utf8proc_normalize_utf32(
      mapped.data(), static_cast<utf8proc_ssize_t>(mapped.size()), options);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    base::AppendUtf8(static_cast<char32_t>(mapped[static_cast<size_t>(i)]), &out);
  }
  return out;
}

}  // namespace

std::string_view GeneralCategory(char32_t code_point) {
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(code_point));
}

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
  return SureSize(text, form) == text.size();
}

std::string Normalize(std::string_view text, NormalForm form) {
  size_t sure = SureSize(text, form);
  if (sure == text.size()) return std::string(text);
  if (form != NormalForm::kNfc) return Map(text, form);
  std::string out;
  while (sure < text.size()) {
    // The code point before may compose with what follows; sure text does not compose with what
    // precedes it.
    size_t begin = sure;
    while (begin > 0 && (static_cast<unsigned char>(text[--begin]) & 0xC0) == 0x80) {
    }
    size_t end = sure;
    while (end < text.size() && SureSize(text.substr(end, base::Utf8Size(text[end])), form) == 0) {
      end += base::Utf8Size(text[end]);
    }
    out.append(text.substr(0, begin)).append(Map(text.substr(begin, end - begin), form));
    text.remove_prefix(end);
    sure = SureSize(text, form);
  }
  return out.append(text);
}

std::string ToLowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += base::Utf8Size(text[at])) {
    const char32_t c = base::DecodeUtf8(text.data() + at);
    if (c == 0x130) {  // the one code point whose unconditional lower case is two code points
      out.append("i\xCC\x87");
    } else {
      base::AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                       &out);
    }
  }
  return out;
}

std::string RemoveMarks(std::string_view text) {
  const CharClassTable& classes = CharClassTable::Get();
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t size = base::Utf8Size(text[at]);
    if ((classes[base::DecodeUtf8(text.data() + at)] & kMark) == 0)
      out.append(text.substr(at, size));
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
