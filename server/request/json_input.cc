#include "server/request/json_input.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/json_shape.h"
#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"
#include "server/request/show_json.h"

namespace heddle::server {
namespace {

constexpr std::string_view kInvalidJson = "invalid_json";

// Text like "line 3, column 14", both from 1.
std::string Place(std::string_view text, size_t offset) {
  size_t line = 1;
  size_t line_begin = 0;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      line_begin = i + 1;
    }
  }
  return base::StrCat("line ", line, ", column ", offset - line_begin + 1);
}

// The library's message without its prefix "[json.exception...] parse error at line 1, column 2: ".
std::string Reason(std::string_view what) {
  size_t place = what.find("column ");
  size_t begin = place == std::string_view::npos ? what.find("] ") : what.find(": ", place);
  return std::string(begin == std::string_view::npos ? what : what.substr(begin + 2));
}

}  // namespace

absl::Status CheckJsonShape(std::string_view text) {
  const base::JsonShape shape = base::FindExcess(text, kMaxJsonDepth, kMaxJsonMembers);
  switch (shape.excess) {
    case base::JsonShape::Excess::kDepth:
      return FieldError("",
                        base::StrCat("the body is nested more than ", kMaxJsonDepth,
                                     " levels deep at ", Place(text, shape.offset)),
                        kInvalidJson);
    case base::JsonShape::Excess::kMembers:
      return FieldError("",
                        base::StrCat("an object of the body has more than ", kMaxJsonMembers,
                                     " members at ", Place(text, shape.offset)),
                        kInvalidJson);
    case base::JsonShape::Excess::kNone:
      break;
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<Json> ParseJson(std::string_view text, Json::value_t wanted) {
  const std::string_view name = wanted == Json::value_t::array ? "a JSON array" : "a JSON object";
  if (text.empty()) {
    return FieldError("", base::StrCat("the body is empty; expected ", name), kInvalidJson);
  }
  if (absl::Status shape = CheckJsonShape(text); !shape.ok()) return shape;
  try {
    Json value = Json::parse(text.begin(), text.end());
    if (value.type() == wanted) return value;
    return FieldError("", base::StrCat("the body must be ", name, ", found ", JsonKind(value)),
                      kInvalidJson);
  } catch (const Json::parse_error& error) {
    size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    return FieldError("",
                      base::StrCat("the body is not valid JSON at ", Place(text, offset), ": ",
                                   Reason(error.what())),
                      kInvalidJson);
  } catch (const Json::exception& error) {  // numbers beyond a double
    return FieldError("", base::StrCat("the body is not valid JSON: ", Reason(error.what())),
                      kInvalidJson);
  }
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  return ParseJson(text, Json::value_t::object);
}
absl::StatusOr<Json> ParseJsonArray(std::string_view text) {
  return ParseJson(text, Json::value_t::array);
}

const Json* Find(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  // A plain scan, because ordered_json's own find needs a std::string.
  for (auto it = object.begin(); it != object.end(); ++it) {
    if (it.key() == name) return it->is_null() ? nullptr : &*it;
  }
  return nullptr;
}

const std::string* TextOf(const Json* value) {
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

std::optional<int64_t> IntegerOf(const Json& value) {
  if (value.is_number_unsigned()) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::min(value.get<uint64_t>(), kMax));
  }
  return value.is_number_integer() ? std::optional(value.get<int64_t>()) : std::nullopt;
}

std::optional<double> NumberOf(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string TextOr(const Json& object, std::string_view name, std::string_view fallback) {
  const std::string* text = TextOf(Find(object, name));
  return text == nullptr ? std::string(fallback) : *text;
}

std::string ShowJson(const Json& value) {
  constexpr size_t kMaxShown = 96;
  if (const std::string* text = TextOf(&value)) return base::Quote(*text);
  std::string text = value.dump();
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "...");
  return text;
}

std::string_view JsonKind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    default:
      return "something else";
  }
}

}  // namespace heddle::server
