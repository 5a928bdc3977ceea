// Anthropic's form of /v1/models, for clients that send "anthropic-version".
// Functions only: any thread.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/openai/input_items.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// {"data":[{"type":"model","id","display_name","created_at"}],"has_more","first_id","last_id"}, a
// page of them by `limit`, `after_id` and `before_id` of the query. INVALID_ARGUMENT: a parameter
// has another value. TakesLong: a folder of adapters has to be read.
absl::StatusOr<std::string> MessagesModelList(std::span<const QueryParameter> query,
                                              const RequestContext& context);

// One entry of the list; NOT_FOUND (model_not_found) for another name.
absl::StatusOr<std::string> MessagesModelCard(const std::string& name,
                                              const RequestContext& context);

}  // namespace heddle::server
