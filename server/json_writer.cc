#include "server/json_writer.h"

#include "base/utf8.h"

namespace heddle::server {
namespace {

void AppendEscape(char c, std::string* out) {
  switch (c) {
    case '"':
      out->append("\\\"");
      return;
    case '\\':
      out->append("\\\\");
      return;
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    default: {
      constexpr char kHex[] = "0123456789abcdef";
      out->append("\\u00");
      out->push_back(kHex[(c >> 4) & 0xF]);
      out->push_back(kHex[c & 0xF]);
    }
  }
}

bool NeedsEscape(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\' || c == 0x7F;
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    if (NeedsEscape(text[0])) {
      AppendEscape(text[0], out);
      text.remove_prefix(1);
      continue;
    }
    size_t length = base::Utf8SequenceLength(text);
    if (length == 0) {
      out->append("\xEF\xBF\xBD");
      length = 1;
    } else {
      out->append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  out->push_back('"');
}

}  // namespace heddle::server
