// The items that a response was made from: those of its request and, if it continues another, that
// one's items and answer before them.
// Each has an id: the client's own if it is valid and unique, or one made from the response that it
// came with. An item keeps its id in all responses that continue from it.
// Source: OpenAI's API reference, "List input items".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/response_store.h"
#include "server/request/json_input.h"
#include "server/request/query_fields.h"

namespace heddle::server {

// REQUIRES: `input`, the member of a request, was accepted. `unique` makes the response's ids
// unique; `previous` may be null.
ResponseItems InputItems(const Json& input, std::string_view unique,
                         const ResponseStore::Entry* previous);

// Adds the items of an answer, without log-probabilities. REQUIRES: `body` is one of ours.
void AddOutputItems(const std::string& body, ResponseItems* items);

// A page of them as {"object":"list","data":[...],"first_id","last_id","has_more"}, by the fields
// of InputItemsQuery (fields.h). INVALID_ARGUMENT, with the parameter at fault, for other values.
// The time is linear in the number of items and the size of those on the page.
absl::StatusOr<std::string> ListItems(const ResponseItems& items,
                                      std::span<const QueryParameter> query);

}  // namespace heddle::server
