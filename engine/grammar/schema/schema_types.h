// JSON Schema's types as a set of bits. Internal to json_schema.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "nlohmann/json.hpp"

namespace heddle::engine::grammar {

enum JsonType : uint8_t {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kNumberType = 8,  // numbers that are no integers; with kIntegerType, all numbers
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAnyType = 127,
};

// The types that a value of "type" names; nothing if it names none.
std::optional<uint8_t> TypesNamed(const nlohmann::ordered_json& type);
// All types but these.
inline uint8_t OtherTypes(uint8_t types) { return static_cast<uint8_t>(kAnyType & ~types); }
// The names of a set of types. Numbers that are no integers have no name of their own: with
// kNumberType alone, the names include all numbers.
nlohmann::ordered_json TypeNames(uint8_t types);
// The type of a value. O(1), except for numbers.
uint8_t TypeOf(const nlohmann::ordered_json& value);
// The types that a keyword applies to: 0 if it applies to all.
uint8_t TypesMeant(std::string_view keyword);

}  // namespace heddle::engine::grammar
