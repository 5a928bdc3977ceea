// Parses bytes to HttpRequest, with bounds on everything that a client chooses. No sockets:
// Connection, tests and the fuzzer feed it.
//
// Boost.Beast parses the grammar (RFC 9112). This file refuses what Beast lets pass and a server
// must not: transfer codings other than chunked, encoded bodies, a missing Host, repeated headers
// that may occur once (another server could choose the other value), folded lines, chunks that
// consist of framing. A body's memory grows with the bytes that have arrived, whatever length was
// announced.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace heddle::server {

struct ParserLimits {
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{8} << 20;
};

// Parses one request. Thread-safety: none.
class RequestParser {
 public:
  enum class State : uint8_t { kHeader, kBody, kDone, kFailed };

  explicit RequestParser(const ParserLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Consumes bytes from the front of `data` and returns their number; the rest must be given again
  // with more data behind it. It stops at the end of the request: the rest belongs to the next one.
  size_t Feed(std::string_view data) { return FeedTo(data, /*stops_at_body=*/false); }

  // The same, but consumes nothing of a body, so that the caller can refuse it.
  size_t FeedHeader(std::string_view data) { return FeedTo(data, /*stops_at_body=*/true); }

  State state() const { return state_; }

  // Whether any byte of a request has arrived; empty lines before it do not count.
  bool has_begun() const { return has_begun_; }

  // From state kBody on: the request without its body.
  const HttpRequest& head() const { return request_; }

  // From state kBody on: the length in the header, 0 without a body; empty for a chunked body.
  std::optional<uint64_t> body_length() const { return body_length_; }
  size_t received_body_bytes() const;

  // State kBody: the client waits for "100 Continue" before it sends the body.
  bool expects_continue() const { return expects_continue_; }

  // State kFailed: the answer before closing.
  int error_status() const { return error_status_; }
  const std::string& error_message() const { return error_message_; }

  // From state kBody on; `body` is complete at kDone, and is moved out.
  HttpRequest TakeRequest();

 private:
  struct Beast;

  size_t FeedTo(std::string_view data, bool stops_at_body);
  size_t SkipEmptyLines(std::string_view data);
  void OnHeader();
  void CheckHeader(int num_hosts);
  void CheckCodings();
  void CheckFraming(size_t used);
  void OnError(const boost::system::error_code& error);
  void Fail(int status, std::string message);

  ParserLimits limits_;
  std::unique_ptr<Beast> beast_;
  State state_ = State::kHeader;
  bool has_begun_ = false;
  int num_empty_lines_ = 0;  // before the request
  std::optional<uint64_t> body_length_;
  uint64_t fed_body_bytes_ = 0;  // including the framing of chunks
  bool expects_continue_ = false;
  int error_status_ = 0;
  std::string error_message_;
  HttpRequest request_;
};

}  // namespace heddle::server
