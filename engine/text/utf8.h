// UTF-8, as far as tokenizers need it: decode and encode one code point, and tell valid, invalid
// and not yet complete sequences apart.
// Source: The Unicode Standard 15.0, section 3.9, table 3-7 (well-formed byte sequences) and
// "U+FFFD substitution of maximal subparts".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::engine::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind {
  kComplete,    // one well-formed code point of `size` bytes
  kInvalid,     // `size` bytes that no continuation can make well-formed
  kIncomplete,  // all `size` bytes left are the start of a well-formed sequence
};

struct Utf8Unit {
  Utf8Kind kind;
  size_t size;
};

// What stands at the start of `bytes`. REQUIRES: not empty.
Utf8Unit ClassifyUtf8(std::string_view bytes);

// Length of the longest well-formed prefix.
size_t ValidUtf8Prefix(std::string_view bytes);
inline bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

// `text` with every `from`, left to right, replaced by `to`. REQUIRES: `from` is not empty.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

// Every maximal ill-formed subpart becomes U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Bytes of a code point from its first byte. REQUIRES: well-formed text.
inline size_t Utf8Size(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0x80) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

// The code point at `at`. REQUIRES: `at` points to the first byte of a well-formed code point.
inline char32_t DecodeUtf8(const char* at) {
  const auto byte = [at](int i) {
    return static_cast<char32_t>(static_cast<unsigned char>(at[i]));
  };
  switch (Utf8Size(*at)) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

// REQUIRES: code_point is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace heddle::engine::text
