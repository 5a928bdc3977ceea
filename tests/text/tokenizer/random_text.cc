#include "tests/text/tokenizer/random_text.h"

#include <array>
#include <string_view>

#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

constexpr std::array<Range, 37> kRanges = {{
    {0x20, 0x7E},       {0x61, 0x7A},     {0x41, 0x5A},       {0x30, 0x39},       {0x20, 0x20},
    {0x09, 0x0D},       {0x21, 0x2F},     {0xA0, 0xFF},       {0x100, 0x17F},     {0x300, 0x36F},
    {0x391, 0x3A1},     {0x400, 0x4FF},   {0x5D0, 0x5EA},     {0x620, 0x64A},     {0x900, 0x963},
    {0xE01, 0xE3A},     {0x1100, 0x11FF}, {0xAC00, 0xD7A3},   {0x4E00, 0x9FFC},   {0x3041, 0x3096},
    {0x30A1, 0x30FA},   {0xFF01, 0xFF5E}, {0x1F300, 0x1F64F}, {0x2000, 0x200A},   {0x200B, 0x200F},
    {0x2010, 0x2029},   {0x2160, 0x2188}, {0x24B6, 0x24E9},   {0x1D400, 0x1D454}, {0x85, 0x85},
    {0x3000, 0x3000},   {0x1E00, 0x1EFF}, {0xFB00, 0xFB06},   {0x1C4, 0x1CC},     {0x2B0, 0x2B8},
    {0x1F900, 0x1F970}, {0x180E, 0x180E},
}};

constexpr std::array<std::string_view, 31> kFragments = {
    "'s",
    "'S",
    "'\xC5\xBF",
    "'re",
    "'LL",
    "'ve",
    "'t",
    "'M",
    "'d",
    " the",
    " and",
    "Hello",
    " world",
    "\n\n",
    "\r\n",
    " \n",
    "    ",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "\xE2\x96\x81",
    "http://",
    "camelCaseWord",
    "ing",
    "e\xCC\x81",
    "12345",
    "...",
    "[MASK]",
    " <special> ",
    "\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD",
};

}  // namespace

std::string RandomText(uint64_t index) {
  SplitMix64 random(index);
  std::string text;
  const uint64_t runs = random.Below(12);
  for (uint64_t run = 0; run < runs; ++run) {
    const uint64_t kind = random.Below(kRanges.size() + kFragments.size());
    if (kind >= kRanges.size()) {
      text.append(kFragments[kind - kRanges.size()]);
      continue;
    }
    const Range range = kRanges[kind];
    const uint64_t count = 1 + random.Below(6);
    for (uint64_t i = 0; i < count; ++i) {
      base::AppendUtf8(
          range.first + static_cast<char32_t>(random.Below(range.last - range.first + 1)), &text);
    }
  }
  return text;
}

}  // namespace heddle::engine::text
