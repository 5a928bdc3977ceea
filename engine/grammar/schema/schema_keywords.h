// Reads keywords whose values are counts and patterns. Internal to json_schema.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/schema/schema_document.h"

namespace heddle::engine::grammar {

// A whole number from 0; -1 if the keyword is missing.
absl::StatusOr<int32_t> ReadCount(SchemaDocument* document, SchemaRef schema,
                                  const std::string& keyword);
// Tightens the bounds by min<what> and max<what>. A maximum of -1 is none.
absl::Status ReadCounts(SchemaDocument* document, SchemaRef schema, const std::string& what,
                        int32_t* min, int32_t* max);

// Whether the pattern can be used; false if it is not supported and was dropped. `name`: the
// keyword, for messages.
absl::StatusOr<bool> CheckPattern(SchemaDocument* document, SchemaRef schema, std::string_view name,
                                  const Json& pattern);

}  // namespace heddle::engine::grammar
