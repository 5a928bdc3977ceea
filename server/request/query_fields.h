// The parameters of a URL's query in the form of a body, so that a table of fields checks them.
// Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/request/fields.h"
#include "server/request/json_input.h"

namespace heddle::server {

// A name and a value of a URL's query, both decoded.
using QueryParameter = std::pair<std::string, std::string>;

// An object of those that `table` names; others, which may be meant for a proxy, are left out.
// Whole numbers become numbers where the field is one. INVALID_ARGUMENT: one is given more than
// once.
absl::StatusOr<Json> QueryObject(std::span<const Field> table,
                                 std::span<const QueryParameter> query);

}  // namespace heddle::server
