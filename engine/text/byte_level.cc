#include "engine/text/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;

constexpr bool IsPrintableLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> char_of{};
  std::array<int16_t, kAlphabetEnd> byte_of{};

  constexpr Alphabet() {
    for (int16_t& byte : byte_of) byte = -1;
    uint16_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const uint16_t c = IsPrintableLatin1(byte) ? static_cast<uint16_t>(byte) : next++;
      char_of[static_cast<size_t>(byte)] = c;
      byte_of[c] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

char32_t ByteLevelChar(uint8_t byte) { return kAlphabet.char_of[byte]; }

int ByteLevelByte(char32_t code_point) {
  return code_point < kAlphabetEnd ? kAlphabet.byte_of[code_point] : -1;
}

std::string ToByteLevel(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) base::AppendUtf8(ByteLevelChar(static_cast<uint8_t>(byte)), &out);
  return out;
}

std::optional<std::string> FromByteLevel(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += base::Utf8Size(text[at])) {
    const int byte = ByteLevelByte(base::DecodeUtf8(text.data() + at));
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

int ByteFallbackByte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string ByteFallbackText(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace heddle::engine::text
