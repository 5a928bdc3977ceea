// DecodePythonic: a reader of Python's call syntax with literals as keyword arguments.
// Source: the Python language reference, sections 2.4 (string literals) and 6.3.4 (calls).
#include <charconv>
#include <optional>
#include <string>

#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "server/request/json_input.h"
#include "server/toolcalls/call_decoders.h"

namespace heddle::server {
namespace {

bool IsNameCharacter(char c) {
  return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : rest_(text) {}

  // Reads [call, call].
  bool ReadCalls(std::vector<ToolCall>* calls) {
    if (!Take('[')) return false;
    while (!Take(']')) {
      std::optional<ToolCall> call = ReadCall();
      if (!call.has_value()) return false;
      calls->push_back(*std::move(call));
      if (!Take(',') && !Peek(']')) return false;
    }
    SkipWhite();
    return rest_.empty() && !calls->empty();
  }

 private:
  void SkipWhite() {
    size_t begin = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
  }
  bool Peek(char c) {
    SkipWhite();
    return rest_.starts_with(c);
  }
  bool Take(char c) {
    if (!Peek(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string ReadName() {
    SkipWhite();
    size_t length = 0;
    while (length < rest_.size() && IsNameCharacter(rest_[length])) ++length;
    std::string name(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return name;
  }

  std::optional<ToolCall> ReadCall() {
    std::string name = ReadName();
    if (name.empty() || !Take('(')) return std::nullopt;
    Json arguments = Json::object();
    while (!Take(')')) {
      std::string key = ReadName();
      if (key.empty() || !Take('=')) return std::nullopt;
      std::optional<Json> value = ReadValue(0);
      if (!value.has_value() || arguments.size() >= kMaxJsonMembers) return std::nullopt;
      arguments[key] = *std::move(value);
      if (!Take(',') && !Peek(')')) return std::nullopt;
    }
    return ToolCall{std::move(name), arguments.dump()};
  }

  std::optional<Json> ReadValue(int depth) {
    SkipWhite();
    if (rest_.empty() || depth > kMaxJsonDepth) return std::nullopt;
    switch (rest_.front()) {
      case '\'':
      case '"':
        return ReadString();
      case '[':
        return ReadList(']', depth);
      case '(':
        return ReadList(')', depth);
      case '{':
        return ReadDict(depth);
      default:
        return ReadWord();
    }
  }

  std::optional<Json> ReadList(char close, int depth) {
    rest_.remove_prefix(1);
    Json list = Json::array();
    while (!Take(close)) {
      std::optional<Json> value = ReadValue(depth + 1);
      if (!value.has_value()) return std::nullopt;
      list.push_back(*std::move(value));
      if (!Take(',') && !Peek(close)) return std::nullopt;
    }
    return list;
  }

  std::optional<Json> ReadDict(int depth) {
    rest_.remove_prefix(1);
    Json dict = Json::object();
    while (!Take('}')) {
      SkipWhite();
      if (!rest_.starts_with('"') && !rest_.starts_with('\'')) return std::nullopt;
      std::optional<Json> key = ReadString();
      if (!key.has_value() || !Take(':') || dict.size() >= kMaxJsonMembers) return std::nullopt;
      std::optional<Json> value = ReadValue(depth + 1);
      if (!value.has_value()) return std::nullopt;
      dict[*TextOf(&*key)] = *std::move(value);
      if (!Take(',') && !Peek('}')) return std::nullopt;
    }
    return dict;
  }

  // Reads True, False, None (and JSON's words), or a number.
  std::optional<Json> ReadWord() {
    size_t length = rest_.find_first_of(",)]} \t\r\n");
    std::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(word.size());
    if (word == "True" || word == "true") return true;
    if (word == "False" || word == "false") return false;
    if (word == "None" || word == "null") return nullptr;
    if (word.starts_with('+')) word.remove_prefix(1);
    const char* end = word.data() + word.size();
    int64_t integer = 0;
    auto [at, error] = std::from_chars(word.data(), end, integer);
    if (error == std::errc() && at == end) return integer;
    double number = 0;
    auto [stop, failure] = std::from_chars(word.data(), end, number);
    bool finite = number - number == 0;
    if (failure == std::errc() && stop == end && finite) return number;
    return std::nullopt;
  }

  std::optional<Json> ReadString() {
    char quote = rest_.front();
    rest_.remove_prefix(1);
    std::string text;
    while (!rest_.empty() && rest_.front() != quote) {
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (c != '\\') {
        text.push_back(c);
      } else if (!ReadEscape(&text)) {
        return std::nullopt;
      }
    }
    if (rest_.empty()) return std::nullopt;
    rest_.remove_prefix(1);
    return text;
  }

  bool ReadEscape(std::string* text) {
    if (rest_.empty()) return false;
    char c = rest_.front();
    rest_.remove_prefix(1);
    constexpr std::string_view kLetters = "ntrbfv0";
    constexpr std::string_view kValues("\n\t\r\b\f\v\0", 7);
    if (size_t at = kLetters.find(c); at != std::string_view::npos) {
      text->push_back(kValues[at]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return ReadHex(c == 'x' ? 2 : c == 'u' ? 4 : 8, text);
    } else if (c == '\\' || c == '\'' || c == '"') {
      text->push_back(c);
    } else if (c != '\n') {  // a backslash removes a line end, and is kept before other characters
      text->push_back('\\');
      text->push_back(c);
    }
    return true;
  }

  bool ReadHex(size_t digits, std::string* text) {
    if (rest_.size() < digits) return false;
    uint32_t code = 0;
    auto [at, error] = std::from_chars(rest_.data(), rest_.data() + digits, code, 16);
    bool surrogate = code >= 0xD800 && code < 0xE000;
    if (error != std::errc() || at != rest_.data() + digits || code > 0x10FFFF || surrogate) {
      return false;
    }
    rest_.remove_prefix(digits);
    base::AppendUtf8(code, text);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

bool DecodePythonic(std::string_view text, const ToolSet&, std::vector<ToolCall>* calls) {
  std::vector<ToolCall> read;
  if (!PythonReader(text).ReadCalls(&read)) return false;
  calls->insert(calls->end(), std::make_move_iterator(read.begin()),
                std::make_move_iterator(read.end()));
  return true;
}

}  // namespace heddle::server
