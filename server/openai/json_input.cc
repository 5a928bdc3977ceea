#include "server/openai/json_input.h"

#include <cstddef>
#include <vector>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_error.h"
#include "server/openai/show_json.h"

namespace heddle::server {
namespace {

constexpr std::string_view kInvalidJson = "invalid_json";

// "line 3, column 14", both from 1.
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

// The library's own words after its prefix "[json.exception...] parse error at line 1, column 2: ".
std::string Reason(std::string_view what) {
  size_t place = what.find("column ");
  size_t begin = place == std::string_view::npos ? what.find("] ") : what.find(": ", place);
  return std::string(begin == std::string_view::npos ? what : what.substr(begin + 2));
}

}  // namespace

absl::Status CheckJsonShape(std::string_view text) {
  std::vector<int> members;  // commas seen, per open bracket
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      // Arrays may be long (token ids); only objects are counted.
      members.push_back(c == '{' ? 1 : -1);
      if (static_cast<int>(members.size()) > kMaxJsonDepth) {
        return FieldError("",
                          base::StrCat("the body is nested more than ", kMaxJsonDepth,
                                       " levels deep at ", Place(text, i)),
                          kInvalidJson);
      }
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ',' && !members.empty() && members.back() > 0 &&
               ++members.back() > kMaxJsonMembers) {
      return FieldError("",
                        base::StrCat("an object of the body has more than ", kMaxJsonMembers,
                                     " members at ", Place(text, i)),
                        kInvalidJson);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  if (text.empty()) {
    return FieldError("", "the body is empty; expected a JSON object", kInvalidJson);
  }
  if (absl::Status shape = CheckJsonShape(text); !shape.ok()) return shape;
  try {
    Json value = Json::parse(text.begin(), text.end());
    if (value.is_object()) return value;
    return FieldError("", base::StrCat("the body must be a JSON object, found ", JsonKind(value)),
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

const Json* Find(const Json& object, std::string_view name) {
  // A plain scan: ordered_json's own find wants a std::string.
  for (auto it = object.begin(); it != object.end(); ++it) {
    if (it.key() == name) return it->is_null() ? nullptr : &*it;
  }
  return nullptr;
}

std::string ShowJson(const Json& value) {
  constexpr size_t kMaxShown = 96;
  if (value.is_string()) return base::Quote(value.get_ref<const std::string&>());
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
