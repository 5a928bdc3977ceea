// Gathers the plain keywords of schemas that all hold into one set of conditions per type. Internal
// to json_schema.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/schema/number_machine.h"
#include "engine/grammar/schema/schema_document.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

enum JsonType : uint8_t {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kNumberType = 8,  // integers included
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAnyType = 127,
};

struct StringConstraints {
  int32_t min_length = 0;
  int32_t max_length = -1;  // -1: none
  std::vector<std::string> patterns;
  std::vector<std::string> formats;

  bool Unbounded() const { return min_length == 0 && OnlyLengths() && max_length < 0; }
  bool OnlyLengths() const { return patterns.empty() && formats.empty(); }
};

struct ArrayConstraints {
  int32_t min_items = 0;
  int32_t max_items = -1;
  bool unique = false;
  std::vector<Conjunction> prefix;
  Conjunction items;  // items behind the prefix
};

struct ObjectConstraints {
  struct Property {
    std::string name;
    bool required = false;
    Conjunction schema;
  };
  // Keys that are not listed: those that match all patterns of `matching` and none of `others`.
  struct Extra {
    std::vector<std::string> matching;
    std::vector<std::string> others;
    Conjunction schema;
  };
  std::vector<Property> properties;  // in the order of writing
  std::vector<Extra> extras;
  std::vector<SchemaRef> names;  // propertyNames
  int32_t min_properties = 0;
  int32_t max_properties = -1;
};

struct ValueConstraints {
  SchemaRef where = nullptr;  // one of the schemas, for messages
  uint8_t types = kAnyType;
  bool has_values = false;
  std::vector<Json> values;  // of enum and const, if has_values
  NumberRange number;
  StringConstraints string;
  ArrayConstraints array;
  ObjectConstraints object;
};

// `plain` is the output of SchemaDocument::Expand.
absl::StatusOr<ValueConstraints> Gather(SchemaDocument* document, const Conjunction& plain);

// The texts that satisfy the conditions on strings, as a machine over the text itself (without
// quotes).
absl::StatusOr<StateMachine> StringMachine(const StringConstraints& constraints, Budget* budget);

}  // namespace heddle::engine::grammar
