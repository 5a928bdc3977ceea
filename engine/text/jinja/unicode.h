// Texts as Python sees them: sequences of code points, stored as UTF-8. Malformed bytes count as
// one code point each, so that no input can break an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::engine::text::jinja {

// Decodes the code point at `*pos` and moves `*pos` behind it. REQUIRES: *pos < text.size().
char32_t NextCodePoint(std::string_view text, size_t* pos);
void AppendCodePoint(char32_t c, std::string* out);

bool IsAscii(std::string_view text);
size_t CountCodePoints(std::string_view text);
// The byte offset of code point `index`; text.size() if there are fewer.
size_t ByteOffset(std::string_view text, size_t index);

bool IsSpace(char32_t c);      // str.isspace of one character
bool IsPrintable(char32_t c);  // repr() shows it unescaped
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsAlpha(char32_t c);
bool IsDigit(char32_t c);  // decimal digits

std::string ToUpper(std::string_view text);  // full mappings: "ß" becomes "SS"
std::string ToLower(std::string_view text);
std::string ToTitle(std::string_view text);  // str.title(): after each uncased character
std::string Capitalize(std::string_view text);

// str.lstrip/rstrip/strip: remove whitespace, or any of the code points in `chars`.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
std::string_view StripLeft(std::string_view text, std::string_view chars);
std::string_view StripRight(std::string_view text, std::string_view chars);

// The first position of `needle` from `from` on, or npos. Linear in the lengths, unlike
// string_view::find, because templates choose both texts.
size_t Find(std::string_view text, std::string_view needle, size_t from = 0);

}  // namespace heddle::engine::text::jinja
