// Writes JSON text straight into a string: no tree, one pass, commas inserted as needed. Answers
// are built with it, because a token's chunk must cost microseconds.
//
// The caller keeps the grammar: a Key before each value of an object, Begin and End in pairs.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::server {

// Appends `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, so that
// the result is always valid JSON.
void AppendJsonString(std::string_view text, std::string* out);

class JsonWriter {
 public:
  explicit JsonWriter(std::string* out) : out_(out) {}

  JsonWriter& BeginObject() { return Begin('{'); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray() { return Begin('['); }
  JsonWriter& EndArray() { return End(']'); }

  JsonWriter& Key(std::string_view name) {
    Separate();
    AppendJsonString(name, out_);
    out_->push_back(':');
    return *this;
  }

  JsonWriter& String(std::string_view text) {
    Separate();
    AppendJsonString(text, out_);
    comma_ = true;
    return *this;
  }
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  JsonWriter& Int(std::integral auto value) { return FromChars(value); }
  // The shortest text that reads back as the same value; NaN and infinity become null.
  JsonWriter& Number(std::floating_point auto value) {
    return std::isfinite(value) ? FromChars(value) : Null();
  }
  // `json` must be one JSON value.
  JsonWriter& Raw(std::string_view json) {
    Separate();
    out_->append(json);
    comma_ = true;
    return *this;
  }

  // Shorthands for a key with its value.
  JsonWriter& Member(std::string_view name, std::string_view text) {
    return Key(name).String(text);
  }
  JsonWriter& Member(std::string_view name, std::integral auto value) {
    return Key(name).Int(value);
  }
  JsonWriter& NullMember(std::string_view name) { return Key(name).Null(); }

 private:
  JsonWriter& Begin(char bracket) {
    Separate();
    out_->push_back(bracket);
    return *this;
  }
  JsonWriter& End(char bracket) {
    out_->push_back(bracket);
    comma_ = true;
    return *this;
  }
  void Separate() {
    if (comma_) out_->push_back(',');
    comma_ = false;
  }
  JsonWriter& FromChars(auto value) {
    char buffer[40];
    auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
    return Raw(std::string_view(buffer, static_cast<size_t>(end - buffer)));
  }

  std::string* out_;
  bool comma_ = false;  // a value stands before the next one
};

}  // namespace heddle::server
