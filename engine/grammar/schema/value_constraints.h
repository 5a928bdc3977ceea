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
#include "engine/grammar/schema/schema_types.h"

namespace heddle::engine::grammar {

struct StringConstraints {
  int32_t min_length = 0;
  int32_t max_length = -1;  // -1: none
  std::vector<std::string> patterns;
  std::vector<std::string> formats;
  std::vector<std::string> without;   // patterns that may not match
  std::vector<std::string> excluded;  // texts
  std::vector<std::string> grammars;  // Lark grammars

  bool Unbounded() const { return min_length == 0 && OnlyLengths() && max_length < 0; }
  bool OnlyLengths() const {
    return patterns.empty() && formats.empty() && without.empty() && excluded.empty() &&
           grammars.empty();
  }
};

struct ArrayConstraints {
  int32_t min_items = 0;
  int32_t max_items = -1;
  bool unique = false;
  std::vector<Conjunction> prefix;
  Conjunction items;  // items behind the prefix
  // At least so many items satisfy the schema, by `contains`.
  struct Contained {
    SchemaRef schema;
    int32_t min = 1;
    int32_t max = -1;
  };
  std::vector<Contained> contained;

  bool Unbounded() const {
    return min_items == 0 && max_items < 0 && !unique && prefix.empty() && items.empty() &&
           contained.empty();
  }
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
  Conjunction plain;  // what all of this says
  bool has_values = false;
  std::vector<Json> values;    // of enum and const, if has_values
  std::vector<Json> excluded;  // of enum and const in a "not"
  NumberRange number;
  StringConstraints string;
  ArrayConstraints array;
  ObjectConstraints object;
};

// `plain` is an alternative that Expand found.
absl::StatusOr<ValueConstraints> Gather(SchemaDocument* document, const Conjunction& plain);

// Whether one of the schemas is false: then nothing is valid.
bool IsNever(const Conjunction& schemas);

// The conditions that `plain` puts on the property `name` of an object.
absl::StatusOr<Conjunction> ConditionsOn(SchemaDocument* document, const Conjunction& plain,
                                         const std::string& name);

}  // namespace heddle::engine::grammar
