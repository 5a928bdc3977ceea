// One GET request to a server, for commands that query a running one. Plain HTTP only; for a server
// with a certificate (--tls-cert), curl can request the same path.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace heddle::server {

// http://HOST[:PORT][/PREFIX]
struct HttpAddress {
  std::string host;
  std::string port = "80";
  std::string prefix;  // without a trailing slash
};

// INVALID_ARGUMENT says what is wrong with the URL, the value of `option`.
absl::StatusOr<HttpAddress> ParseHttpAddress(std::string_view url,
                                             std::string_view option = "--url");

// Replaces bytes that are not allowed in a path's segment by %XX.
std::string PercentEncoded(std::string_view segment);

struct HttpAnswer {
  int status = 0;
  std::string body;
};

inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

// `path` begins with a slash; `key` is sent as a bearer token unless it is empty. UNAVAILABLE: no
// answer within `timeout`. Blocks.
absl::StatusOr<HttpAnswer> HttpGet(const HttpAddress& address, std::string_view path,
                                   std::string_view key, std::chrono::milliseconds timeout);

}  // namespace heddle::server
