// Bytes to HttpRequest, with bounds on everything a client chooses. No sockets: fed by Connection,
// by tests, and by the fuzzer.
//
// Boost.Beast does the grammar (RFC 9112); what it lets pass and a server must refuse is checked
// here: transfer codings other than chunked, encoded bodies, a missing Host, repeated headers that
// say one thing (whose two values another server could read the other way), folded lines.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace heddle::server {

struct ParserLimits {
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{8} << 20;
};

// One request. Thread-safety: none.
class RequestParser {
 public:
  enum class State : uint8_t { kHeader, kBody, kDone, kFailed };

  explicit RequestParser(const ParserLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Consumes from the front of `data` and returns how many bytes; what is left must come again
  // with more behind it. Stops at the end of the request: the rest belongs to the next one.
  size_t Feed(std::string_view data);

  State state() const { return state_; }

  // State kBody: the client waits for "100 Continue" before it sends the body.
  bool expects_continue() const { return expects_continue_; }

  // State kFailed: what to answer before closing.
  int error_status() const { return error_status_; }
  const std::string& error_message() const { return error_message_; }

  // From state kBody on; `body` is complete at kDone, and moved out.
  HttpRequest TakeRequest();

 private:
  struct Beast;

  void OnHeader();
  void Fail(int status, std::string message);

  ParserLimits limits_;
  std::unique_ptr<Beast> beast_;
  State state_ = State::kHeader;
  bool expects_continue_ = false;
  int error_status_ = 0;
  std::string error_message_;
  HttpRequest request_;
};

}  // namespace heddle::server
