// Checks values that a schema lists against its other conditions. Internal to json_schema.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/schema/value_constraints.h"

namespace heddle::engine::grammar {

// Whether `value` is valid by the conditions; it may say false of a valid value where conditions
// are negations that are no schemas.
absl::StatusOr<bool> Satisfies(SchemaDocument* document, const Json& value,
                               const ValueConstraints& constraints);
absl::StatusOr<bool> Satisfies(SchemaDocument* document, const Json& value,
                               const Conjunction& schemas);

// Those of the listed values of `constraints` that satisfy its other conditions, in order and
// without duplicates; pointers into `constraints`. REQUIRES: it has values.
absl::StatusOr<std::vector<const Json*>> ListedValuesOf(SchemaDocument* document,
                                                        const ValueConstraints& constraints);

// All values that are valid by the schemas, without duplicates, if these list them, or if they are
// booleans, null, or integers of a small range. Nothing if there may be others.
absl::StatusOr<std::optional<std::vector<Json>>> FiniteValues(SchemaDocument* document,
                                                              const Conjunction& schemas);

}  // namespace heddle::engine::grammar
