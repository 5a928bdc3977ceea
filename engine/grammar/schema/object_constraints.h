// Gathers what schemas that all hold say of an object. Internal to value_constraints.
#pragma once

#include "absl/status/status.h"
#include "engine/grammar/schema/value_constraints.h"

namespace heddle::engine::grammar {

// Fills out->object from the schemas of `plain`.
absl::Status GatherObject(SchemaDocument* document, const Conjunction& plain,
                          ValueConstraints* out);

}  // namespace heddle::engine::grammar
