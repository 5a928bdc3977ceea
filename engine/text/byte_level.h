// The byte alphabet of byte-level BPE: each of the 256 bytes is represented by one printable code
// point, so that vocabularies can be stored as text.
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), 2019:
// printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, ... in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::engine::text {

// The code point of `byte`; always below U+0144.
char32_t ByteLevelChar(uint8_t byte);
// The byte of `code_point`, or -1.
int ByteLevelByte(char32_t code_point);

std::string ToByteLevel(std::string_view bytes);
// nullopt if a code point is not in the alphabet. REQUIRES: well-formed UTF-8.
std::optional<std::string> FromByteLevel(std::string_view text);

// The byte of a token written `<0xNN>` (SentencePiece's byte fallback), or -1.
int ByteFallbackByte(std::string_view token);
std::string ByteFallbackText(uint8_t byte);

}  // namespace heddle::engine::text
