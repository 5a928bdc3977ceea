// One GET request to a server, for commands that ask a running one. Plain HTTP: of a server that
// has a certificate (--tls-cert), curl asks the same path.
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
  std::string prefix;  // without a slash at its end
};

// INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<HttpAddress> ParseHttpAddress(std::string_view url);

// Bytes that a path's segment cannot have as they stand become %XX.
std::string PercentEncoded(std::string_view segment);

struct HttpAnswer {
  int status = 0;
  std::string body;
};

inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

// `path` begins with a slash; `key` goes as a bearer token unless it is empty. UNAVAILABLE: nobody
// answers there within `timeout`. Blocks.
absl::StatusOr<HttpAnswer> HttpGet(const HttpAddress& address, std::string_view path,
                                   std::string_view key, std::chrono::milliseconds timeout);

}  // namespace heddle::server
