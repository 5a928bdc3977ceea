// Resolves how schemas are combined: which plain conditions (keywords on one value) hold together
// once references, allOf, anyOf, oneOf, not, if and dependent schemas are resolved. Internal to
// json_schema.
//
// The result may allow less than is valid, and never more: for a schema that must fail it
// takes the ways that are schemas themselves (schema_negation.h). Alternatives that plainly
// contradict what holds anyway are left out (schema_overlap.h), so that ten conditions on one
// property's value are eleven alternatives and not a thousand.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/schema/schema_document.h"

namespace heddle::engine::grammar {

// Alternatives of conjunctions: a value is valid by `conjunction` if it is valid by one of them. Of
// their schemas, only the plain keywords are still to be heeded. With no alternatives nothing is
// valid.
absl::StatusOr<std::vector<Conjunction>> Expand(SchemaDocument* document,
                                                const Conjunction& conjunction);

}  // namespace heddle::engine::grammar
