#include "base/utf8.h"

#include <cstring>

namespace heddle::base {
namespace {

struct ByteRange {
  unsigned char low;
  unsigned char high;
};

// Table 3-7: the bytes that may follow `first` directly. Further ones are 80..BF.
ByteRange SecondByteRange(unsigned char first) {
  switch (first) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

}  // namespace

Utf8Unit ClassifyUtf8(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return {Utf8Kind::kComplete, 1};
  if (first < 0xC2 || first > 0xF4) return {Utf8Kind::kInvalid, 1};
  const size_t need = Utf8Size(bytes[0]);
  ByteRange range = SecondByteRange(first);
  for (size_t i = 1; i < need; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < range.low || byte > range.high) return {Utf8Kind::kInvalid, i};
    range = {0x80, 0xBF};
  }
  return {Utf8Kind::kComplete, need};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    // Checks eight bytes at a time, because most text is ASCII.
    uint64_t word;
    while (at + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) != 0) break;
      at += sizeof(word);
    }
    if (at == bytes.size()) break;
    const Utf8Unit unit = ClassifyUtf8(bytes.substr(at));
    if (unit.kind != Utf8Kind::kComplete) break;
    at += unit.size;
  }
  return at;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    text.remove_prefix(length == 0 ? 1 : length);
    ++count;
  }
  return count;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    out.append(kReplacementCharacter);
    bytes.remove_prefix(ClassifyUtf8(bytes).size);
  }
  return out;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto tail = [code_point](int shift) {
    return static_cast<char>(0x80 | (code_point >> shift & 0x3F));
  };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code_point >> 6));
    out->push_back(tail(0));
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | code_point >> 12));
    out->push_back(tail(6));
    out->push_back(tail(0));
  } else {
    out->push_back(static_cast<char>(0xF0 | code_point >> 18));
    out->push_back(tail(12));
    out->push_back(tail(6));
    out->push_back(tail(0));
  }
}

}  // namespace heddle::base
