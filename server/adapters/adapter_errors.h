// The errors that several parts of the registry return. Private to server/adapters/.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/message.h"
#include "server/request/api_error.h"
#include "server/retry_after.h"

namespace heddle::server {

inline absl::Status NoSuchAdapter(std::string_view name) {
  return WithCode(absl::NotFoundError(base::StrCat("there is no adapter ", base::Quote(name))),
                  "model_not_found");
}

// UNAVAILABLE, to be tried again after about the time of a load.
inline absl::Status Busy(std::string_view why) {
  constexpr double kRetrySeconds = 2;
  return WithRetryAfter(absl::UnavailableError(base::AbslView(why)), kRetrySeconds);
}

inline absl::Status NoRoom() {
  return Busy("the memory for adapters (--lora-host-memory) is full of those in use");
}

inline absl::Status TooLarge(int64_t bytes, int64_t limit) {
  return absl::ResourceExhaustedError(base::StrCat("the adapter has at least ", bytes,
                                                   " bytes, and the memory for adapters has ",
                                                   limit, " (--lora-host-memory)"));
}

}  // namespace heddle::server
