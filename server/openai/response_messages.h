// Items of a conversation of /v1/responses as messages of a chat.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"
#include "server/openai/response_store.h"
#include "server/openai/response_tools.h"
#include "server/request/json_input.h"

namespace heddle::server {

// The sources that a reader of items needs beside them.
struct ItemSources {
  const ResponseTools* tools = nullptr;
  ResponseStore* store = nullptr;  // where the items are that others refer to
  uint64_t tenant = 0;
  bool short_only = false;  // items of other responses may be long
};

// `history`, an array of chat messages, with those of `input`: a text, or items. INVALID_ARGUMENT
// names the item at fault. NOT_FOUND: it refers to an item that is not kept. TakesLong: it refers
// to one, and there is no patience for that.
absl::StatusOr<Json> ResponseMessages(const Json& input, Json history, const ItemSources& sources);

}  // namespace heddle::server
