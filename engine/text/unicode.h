// Unicode properties and normalisation forms that tokenizers need. The data is utf8proc's. All
// texts here are well-formed UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace heddle::engine::text {

// Bits of a code point's class. Lm and Lo are kLetter alone.
enum CharClass : uint8_t {
  kLetter = 1,       // general category L*
  kNumber = 2,       // N*
  kWhiteSpace = 4,   // property White_Space: what \s means to Oniguruma and to Rust
  kPunctuation = 8,  // P*
  kMark = 16,        // M*
  kUpper = 32,       // Lu, Lt
  kLower = 64,       // Ll
  kSymbol = 128,     // S*
};

// Class bits of every code point in two stages, so that a look-up is two loads. Immutable.
class CharClassTable {
 public:
  // Built at the first call (some milliseconds), then shared by all tokenizers.
  static const CharClassTable& Get();

  uint8_t operator[](char32_t code_point) const {
    return blocks_[block_of_[code_point >> 8]][code_point & 0xFF];
  }
  // [128]
  const uint8_t* ascii() const { return blocks_[block_of_[0]].data(); }

 private:
  CharClassTable();

  std::array<uint16_t, 0x1100> block_of_;
  std::unique_ptr<std::array<uint8_t, 256>[]> blocks_;
};

// The general category: "Lu", "Cc"... O(1).
std::string_view GeneralCategory(char32_t code_point);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether `text` is certainly in that form already; false means unknown. O(size), cheap.
bool IsSurelyNormalized(std::string_view text, NormalForm form);
std::string Normalize(std::string_view text, NormalForm form);

// Full lower-case mapping without context (Rust's char::to_lowercase).
std::string ToLowercase(std::string_view text);
std::string RemoveMarks(std::string_view text);

// Whether a user-perceived character ends between two neighbouring code points. `state` is 0 at
// first and carries what the rules have to remember.
bool IsGraphemeBreak(char32_t before, char32_t after, int32_t* state);

}  // namespace heddle::engine::text
