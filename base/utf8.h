// UTF-8: decodes and encodes one code point, counts code points, and distinguishes valid, invalid
// and incomplete sequences.
// Source: The Unicode Standard 15.0, section 3.9, table 3-7 (well-formed byte sequences) and
// "U+FFFD substitution of maximal subparts".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::base {

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

// Classifies the beginning of `bytes`. REQUIRES: not empty.
Utf8Unit ClassifyUtf8(std::string_view bytes);

// Length of the longest well-formed prefix.
size_t ValidUtf8Prefix(std::string_view bytes);
inline bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

// Length in bytes of the well-formed code point at the start of `bytes`, or 0.
inline size_t Utf8SequenceLength(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const Utf8Unit unit = ClassifyUtf8(bytes);
  return unit.kind == Utf8Kind::kComplete ? unit.size : 0;
}

// Code points of `text`; each byte of an ill-formed sequence counts as one.
size_t CountCodePoints(std::string_view text);

// Replaces every maximal ill-formed subpart by U+FFFD.
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

}  // namespace heddle::base
