#include "engine/grammar/schema/schema_types.h"

#include <cmath>
#include <string>

#include "base/message.h"

namespace heddle::engine::grammar {
namespace {

using Json = nlohmann::ordered_json;

struct TypeName {
  std::string_view name;
  uint8_t bits;
};
constexpr TypeName kTypes[] = {{"null", kNullType},       {"boolean", kBooleanType},
                               {"integer", kIntegerType}, {"number", kNumberType | kIntegerType},
                               {"string", kStringType},   {"array", kArrayType},
                               {"object", kObjectType},   {"any", kAnyType}};

}  // namespace

std::optional<uint8_t> TypesNamed(const Json& type) {
  if (type.is_array()) {
    uint8_t all = 0;
    for (const Json& name : type) {
      const std::optional<uint8_t> bits = name.is_array() ? std::nullopt : TypesNamed(name);
      if (!bits) return std::nullopt;
      all |= *bits;
    }
    return all;
  }
  if (!type.is_string()) return std::nullopt;
  for (const TypeName& known : kTypes) {
    if (type.get_ref<const std::string&>() == known.name) return known.bits;
  }
  return std::nullopt;
}

Json TypeNames(uint8_t types) {
  Json names = Json::array();
  const bool has_number = (types & kNumberType) != 0;
  for (const TypeName& known : kTypes) {
    if (known.bits == kAnyType || (known.bits == kIntegerType && has_number)) continue;
    const bool is_number = (known.bits & kNumberType) != 0;
    if ((types & (is_number ? uint8_t{kNumberType} : known.bits)) == 0) continue;
    names.push_back(std::string(known.name));
  }
  return names;
}

uint8_t TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNullType;
    case Json::value_t::boolean:
      return kBooleanType;
    case Json::value_t::string:
      return kStringType;
    case Json::value_t::array:
      return kArrayType;
    case Json::value_t::object:
      return kObjectType;
    case Json::value_t::number_float:
      return std::floor(value.get<double>()) == value.get<double>() ? kIntegerType : kNumberType;
    default:
      return kIntegerType;
  }
}

uint8_t TypesMeant(std::string_view keyword) {
  static constexpr struct {
    uint8_t types;
    std::string_view words;
  } kKeywords[] = {
      {kObjectType,
       " properties required additionalProperties patternProperties propertyNames minProperties "
       "maxProperties unevaluatedProperties dependentRequired dependentSchemas dependencies "},
      {kArrayType,
       " items prefixItems additionalItems minItems maxItems uniqueItems unevaluatedItems "
       "contains minContains maxContains "},
      {kStringType, " minLength maxLength pattern format x-lark "},
      {kNumberType | kIntegerType,
       " minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "}};
  for (const auto& row : kKeywords) {
    if (row.words.find(base::StrCat(" ", keyword, " ")) != std::string_view::npos) {
      return row.types;
    }
  }
  return 0;
}

}  // namespace heddle::engine::grammar
