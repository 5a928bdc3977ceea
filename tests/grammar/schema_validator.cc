#include "tests/grammar/schema_validator.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "base/utf8.h"

namespace heddle::test {
namespace {

using nlohmann::json;

const std::set<std::string> kSilent = {"$schema",     "$id",         "$comment", "$defs",
                                       "definitions", "title",       "default",  "examples",
                                       "$anchor",     "description", "if"};

bool HasType(const json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  const bool whole = value.is_number_float() && value == std::floor(value.get<double>());
  return value.is_number_integer() || whole;
}

size_t CodePoints(const std::string& text) {
  size_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

// By code points: std::regex knows bytes, std::wregex has 32 bits here.
bool Finds(const std::string& text, const std::string& pattern) {
  auto widen = [](const std::string& utf8) {
    std::wstring wide;
    for (size_t i = 0; i < utf8.size(); i += base::Utf8Size(utf8[i])) {
      wide.push_back(static_cast<wchar_t>(base::DecodeUtf8(utf8.data() + i)));
    }
    return wide;
  };
  return std::regex_search(widen(text), std::wregex(widen(pattern)));
}

bool IsLeap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

bool IsDate(const std::string& text) {
  std::smatch match;
  if (!std::regex_match(text, match, std::regex("(\\d{4})-(\\d{2})-(\\d{2})"))) return false;
  const int year = std::stoi(match[1]);
  const int month = std::stoi(match[2]);
  const int day = std::stoi(match[3]);
  const int days[] = {31, IsLeap(year) ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  return year > 0 && month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1];
}

bool IsTime(const std::string& text) {
  static const std::regex kTime(
      "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)");
  return std::regex_match(text, kTime);
}

bool IsIpv4(const std::string& text) {
  std::smatch match;
  if (!std::regex_match(text, match, std::regex("(\\d+)\\.(\\d+)\\.(\\d+)\\.(\\d+)"))) return false;
  for (int i = 1; i <= 4; ++i) {
    const std::string part = match[i];
    if (part.size() > 3 || std::stoi(part) > 255 || (part.size() > 1 && part[0] == '0')) {
      return false;
    }
  }
  return true;
}

bool HasFormat(const std::string& text, const std::string& format) {
  if (format == "date") return IsDate(text);
  if (format == "time") return IsTime(text);
  if (format == "date-time") {
    return text.size() > 11 && text[10] == 'T' && IsDate(text.substr(0, 10)) &&
           IsTime(text.substr(11));
  }
  if (format == "ipv4") return IsIpv4(text);
  if (format == "uuid") {
    static const std::regex kUuid(
        "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}");
    return std::regex_match(text, kUuid);
  }
  if (format == "email") return std::regex_match(text, std::regex("[^@\\s]+@[^@\\s]+\\.[^@\\s]+"));
  if (format == "uri") return std::regex_match(text, std::regex("[a-z]+://[^\\s]+"));
  return true;
}

class Validator {
 public:
  Validator(const json& root, const json& value, const std::string& place)
      : root_(root), value_(value), place_(place) {}

  std::string Run(const json& schema) {
    if (schema.is_boolean()) return schema.get<bool>() ? "" : Fault("false");
    for (const auto& [keyword, condition] : schema.items()) {
      if (kSilent.contains(keyword)) continue;
      const std::string fault = Check(schema, keyword, condition);
      if (!fault.empty()) return fault;
    }
    return "";
  }

 private:
  std::string Fault(const std::string& keyword) const {
    return keyword + " at " + place_ + ": " + value_.dump().substr(0, 200);
  }
  std::string Unless(bool ok, const std::string& keyword) const { return ok ? "" : Fault(keyword); }

  bool Valid(const json& schema) const {
    return SchemaFault(root_, schema, value_, place_).empty();
  }

  std::string Check(const json& schema, const std::string& keyword, const json& c) {
    if (keyword == "$ref") {
      const std::string ref = c;
      return SchemaFault(root_, ref == "#" ? root_ : root_.at(json::json_pointer(ref.substr(1))),
                         value_, place_);
    }
    if (keyword == "type") {
      const json types = c.is_array() ? c : json::array({c});
      for (const json& type : types) {
        if (HasType(value_, type)) return "";
      }
      return Fault(keyword);
    }
    if (keyword == "const") return Unless(value_ == c, keyword);
    if (keyword == "enum") return Unless(std::find(c.begin(), c.end(), value_) != c.end(), keyword);
    if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
      size_t valid = 0;
      for (const json& part : c) valid += Valid(part) ? 1 : 0;
      return Unless(keyword == "allOf"   ? valid == c.size()
                    : keyword == "anyOf" ? valid > 0
                                         : valid == 1,
                    keyword);
    }
    if (value_.is_number()) return CheckNumber(keyword, c);
    if (value_.is_string()) return CheckString(keyword, c);
    if (value_.is_array()) return CheckArray(schema, keyword, c);
    if (value_.is_object()) return CheckObject(schema, keyword, c);
    return "";
  }

  std::string CheckNumber(const std::string& keyword, const json& c) const {
    if (keyword == "minimum") return Unless(value_ >= c, keyword);
    if (keyword == "maximum") return Unless(value_ <= c, keyword);
    if (keyword == "exclusiveMinimum") return Unless(value_ > c, keyword);
    if (keyword == "exclusiveMaximum") return Unless(value_ < c, keyword);
    if (keyword == "multipleOf") {
      if (value_.is_number_integer() && c.is_number_integer()) {
        return Unless(value_.get<int64_t>() % c.get<int64_t>() == 0, keyword);
      }
      return Unless(std::remainder(value_.get<double>(), c.get<double>()) == 0, keyword);
    }
    return "";
  }

  std::string CheckString(const std::string& keyword, const json& c) const {
    const std::string text = value_;
    if (keyword == "minLength") return Unless(CodePoints(text) >= c.get<size_t>(), keyword);
    if (keyword == "maxLength") return Unless(CodePoints(text) <= c.get<size_t>(), keyword);
    if (keyword == "pattern") {
      return Unless(Finds(text, c), keyword);
    }
    if (keyword == "format") return Unless(HasFormat(text, c), keyword);
    return "";
  }

  std::string Item(size_t index, const json& schema) const {
    return SchemaFault(root_, schema, value_[index], place_ + "[" + std::to_string(index) + "]");
  }

  std::string CheckArray(const json& schema, const std::string& keyword, const json& c) const {
    if (keyword == "minItems") return Unless(value_.size() >= c.get<size_t>(), keyword);
    if (keyword == "maxItems") return Unless(value_.size() <= c.get<size_t>(), keyword);
    if (keyword == "uniqueItems") {
      const std::set<json> distinct(value_.begin(), value_.end());
      return Unless(!c.get<bool>() || distinct.size() == value_.size(), keyword);
    }
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value_.size(); ++i) {
      std::string fault;
      if (keyword == "prefixItems" && i < prefix) fault = Item(i, c[i]);
      if (keyword == "items" && i >= prefix) fault = Item(i, c);
      if (keyword == "unevaluatedItems" && i >= prefix && !schema.contains("items")) {
        fault = Item(i, c);
      }
      if (!fault.empty()) return fault;
    }
    return "";
  }

  std::string CheckObject(const json& schema, const std::string& keyword, const json& c) const {
    if (keyword == "minProperties") return Unless(value_.size() >= c.get<size_t>(), keyword);
    if (keyword == "maxProperties") return Unless(value_.size() <= c.get<size_t>(), keyword);
    if (keyword == "required") {
      for (const json& name : c) {
        if (!value_.contains(name.get<std::string>())) return Fault(keyword);
      }
      return "";
    }
    for (const auto& [name, member] : value_.items()) {
      const std::string place = place_ + "." + name;
      bool known = schema.contains("properties") && schema["properties"].contains(name);
      std::string fault;
      if (keyword == "properties" && known) {
        fault = SchemaFault(root_, c[name], member, place);
      }
      const json patterns = schema.value("patternProperties", json::object());
      for (const auto& [pattern, part] : patterns.items()) {
        if (!Finds(name, pattern)) continue;
        known = true;
        if (keyword == "patternProperties" && fault.empty()) {
          fault = SchemaFault(root_, part, member, place);
        }
      }
      if (keyword == "additionalProperties" && !known) {
        fault = SchemaFault(root_, c, member, place);
      }
      if (keyword == "propertyNames") fault = SchemaFault(root_, c, name, place);
      if (!fault.empty()) return fault;
    }
    return "";
  }

  const json& root_;
  const json& value_;
  const std::string& place_;
};

}  // namespace

std::string SchemaFault(const json& root, const json& schema, const json& value,
                        const std::string& place) {
  return Validator(root, value, place).Run(schema);
}

}  // namespace heddle::test
