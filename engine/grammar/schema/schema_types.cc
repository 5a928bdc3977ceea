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

uint8_t OtherTypes(uint8_t types) {
  if ((types & kIntegerType) != 0) types |= kNumberType;
  return static_cast<uint8_t>(kAnyType & ~types);
}

Json TypeNames(uint8_t types) {
  Json names = Json::array();
  if ((types & kNumberType) != 0) types &= static_cast<uint8_t>(~kIntegerType);
  for (const TypeName& known : kTypes) {
    const bool is_number = known.bits == (kNumberType | kIntegerType);
    if (known.bits == kAnyType) continue;
    const uint8_t wanted = is_number ? uint8_t{kNumberType} : known.bits;
    if ((types & known.bits) == wanted) {
      names.push_back(std::string(known.name));
    }
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
      {kStringType, " minLength maxLength pattern format "},
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
