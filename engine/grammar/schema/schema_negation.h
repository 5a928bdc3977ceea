// The ways in which a value can fail to be valid by a schema. Internal to json_schema.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/schema/schema_document.h"

namespace heddle::engine::grammar {

struct WayToFail {
  Conjunction hold;  // schemas that are valid
  Conjunction fail;  // schemas that are not
};

// Every value of each way is invalid by `schema`. Not every invalid value has a way: keywords whose
// opposite is no schema (multipleOf, format, patternProperties...) contribute none. `plain`: what
// holds anyway; further properties are looked for among those that it names.
absl::StatusOr<std::vector<WayToFail>> WaysToFail(SchemaDocument* document, SchemaRef schema,
                                                  const Conjunction& plain);

}  // namespace heddle::engine::grammar
