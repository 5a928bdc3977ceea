#include "server/utf8.h"

namespace heddle::server {
namespace {

bool InRange(unsigned char byte, unsigned char low, unsigned char high) {
  return byte >= low && byte <= high;
}

}  // namespace

size_t Utf8SequenceLength(std::string_view text) {
  if (text.empty()) return 0;
  auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  auto tail = [&](size_t i) { return i < text.size() && InRange(at(i), 0x80, 0xBF); };
  unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  if (text.size() < 2) return 0;
  if (InRange(lead, 0xC2, 0xDF)) return tail(1) ? 2 : 0;
  if (InRange(lead, 0xE0, 0xEF)) {
    unsigned char low = lead == 0xE0 ? 0xA0 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : 0xBF;
    return InRange(at(1), low, high) && tail(2) ? 3 : 0;
  }
  if (InRange(lead, 0xF0, 0xF4)) {
    unsigned char low = lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xF4 ? 0x8F : 0xBF;
    return InRange(at(1), low, high) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  while (!text.empty()) {
    size_t length = Utf8SequenceLength(text);
    text.remove_prefix(length == 0 ? 1 : length);
    ++count;
  }
  return count;
}

}  // namespace heddle::server
