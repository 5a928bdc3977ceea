// Headers of requests and answers, whatever version of HTTP carries them.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/http_message.h"

namespace heddle::server {

struct HeaderFault {
  int status = 400;
  std::string message;
};

// Finds what a server must not let pass though the grammar does: headers that may occur once and
// occur twice, a Content-Length that is no number, codings and expectations that are not supported.
std::optional<HeaderFault> FaultOf(const HttpRequest& request);

// The headers of an answer as HTTP/2 has them: names in lower case, without those of a connection.
// `body_bytes`: empty if the length is not known.
std::vector<std::pair<std::string, std::string>> Http2Fields(const HttpResponse& response,
                                                             std::optional<size_t> body_bytes,
                                                             std::string_view request_id);

}  // namespace heddle::server
