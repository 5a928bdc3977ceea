// What is answered about responses that are kept: the response, that it is forgotten from now on,
// the items that it was made of, that it cannot be cancelled. Private to server/http/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/router.h"
#include "server/openai/response_store.h"

namespace heddle::server {

// `query` as it came. NOT_FOUND where the response is unknown, was forgotten or is another's;
// INVALID_ARGUMENT for what cannot be asked of it. REQUIRES: `id` is one of kResponse,
// kDeleteResponse, kCancelResponse and kInputItems.
absl::StatusOr<std::string> AnswerAboutResponse(RouteId id, std::string_view response_id,
                                                uint64_t tenant, std::string_view query,
                                                ResponseStore* store);

}  // namespace heddle::server
