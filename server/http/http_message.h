// HTTP requests and responses as plain values. No sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::server {

using Clock = std::chrono::steady_clock;

inline double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct HttpRequest {
  std::string method;  // "GET", in capitals as received
  std::string path;    // percent-decoded path of the target
  std::string query;   // after '?', as received
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  bool http11 = true;
  bool keep_alive = true;
  std::string request_id;      // the client's X-Request-Id if it is acceptable, else our own
  Clock::time_point received;  // when the request was complete
  uint64_t peer = 0;           // stands for the client's address (peer.h); 0: unknown
  // Owner of the API key of a request that the server makes for a client, as a line of a batch; the
  // request does not carry the key.
  std::optional<uint64_t> sender;

  // The value of the first header of that name, or empty. Names compare without case.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// "OK", "Not Found"...
std::string_view ReasonPhrase(int status);

// How the body of a response is delimited.
enum class BodyFraming : uint8_t { kLength, kChunked, kUntilClose };

// Status line and headers with the empty line. `body_bytes` is used with kLength.
std::string ResponseHead(const HttpResponse& response, BodyFraming framing, size_t body_bytes,
                         bool keep_alive, std::string_view request_id);

// One chunk of a chunked body; `data` is not empty.
void AppendChunk(std::string_view data, std::string* out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// Whether a client's request id may be logged and sent back: 1 to 128 printable characters without
// spaces.
bool IsRequestId(std::string_view id);

// The parameters of a query in their order, percent-decoded, with '+' as a space; false for a
// broken percent escape.
bool ParseQuery(std::string_view query,
                std::vector<std::pair<std::string, std::string>>* parameters);

// Splits a request target into path and query; false if it is not an origin-form target, or has a
// broken percent escape.
bool ParseTarget(std::string_view target, HttpRequest* request);

bool EqualsIgnoringCase(std::string_view a, std::string_view b);

}  // namespace heddle::server
