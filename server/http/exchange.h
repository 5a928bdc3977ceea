// The border between the transport (sockets, framing, limits) and what answers requests.
//
// Everything here happens on the I/O thread of the request's connection: a Handler and an Exchange
// never see two threads at once for one request, and must not block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/access/key_account.h"
#include "server/http/message.h"
#include "server/trace/trace_context.h"

namespace heddle::server {

// How a request ended, for logs and metrics.
enum class Outcome : uint8_t {
  kSuccess,
  kClientError,  // 4xx but 429
  kServerError,  // 5xx but 503, or an error in the middle of a stream
  kRejected,     // 429 and 503: no room, or draining
  kCancelled,    // the client left, or stopped reading
};

std::string_view OutcomeName(Outcome outcome);  // "success", "client_error"...

struct RequestRecord;
Outcome OutcomeOf(const RequestRecord& record, bool cancelled);

// What is known of a request when it is over. The transport fills what it sees; whoever answers
// fills the rest while the request lives.
struct RequestRecord {
  std::string method;
  std::string path;   // as logged
  std::string route;  // pattern, for metrics: "/v1/models/{id}"; empty: no route
  std::string request_id;
  std::string key_name;  // of the API key that came with it; never the key
  TraceContext trace;    // of the client's traceparent, or of a new trace; may be empty
  int status = 0;        // 0: closed before a status was sent
  Outcome outcome = Outcome::kSuccess;
  bool failed_midway = false;  // the stream ended in an error event
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t cached_tokens = 0;        // of the prompts
  double prepared_seconds = -1;     // until its body was read and all was ready; negative: never
  double queued_seconds = -1;       // until the first step; negative: it had none
  double first_token_seconds = -1;  // from the complete request; negative: none
  double last_event_seconds = -1;   // until the engine's last news; negative: none came
  double total_seconds = 0;
  // What a generation was to be, and how its choices ended; for spans.
  struct Asked {
    int32_t max_tokens = 0;
    float temperature = 0;
    float top_p = 0;
    int32_t choices = 1;
  };
  std::optional<Asked> asked;
  std::vector<std::string> finish_reasons;
  // Headers that the answer has, whoever writes it.
  std::vector<std::pair<std::string, std::string>> answer_headers;
  std::vector<std::shared_ptr<KeyAccount>> accounts;  // that the request is in progress of
};

// The way back to the client; implemented by Connection. Lives as long as the exchange.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // The whole answer. Ends the exchange: nothing else may be called after it.
  virtual void Send(HttpResponse response) = 0;

  // The head of an answer whose body comes piece by piece (server-sent events). Between pieces,
  // when nothing was sent for a while, the transport sends `keep_alive`.
  virtual void StartStream(HttpResponse head, std::string_view keep_alive) = 0;
  virtual void Write(std::string_view data) = 0;
  virtual void EndStream() = 0;  // ends the exchange

  // Bytes that the client has not taken yet.
  virtual size_t buffered_bytes() const = 0;

  // The client leaves more unread than one may: whoever writes calls Abort.
  virtual bool is_overfull() const = 0;

  // Closes the connection at once. Ends the exchange.
  virtual void Abort() = 0;

  virtual RequestRecord& record() = 0;
};

// A request that is not answered yet.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // The client is gone, or took nothing for too long, or the server stops. The writer must not be
  // used any more.
  virtual void OnDisconnect() = 0;

  // A few times a second, for time limits.
  virtual void OnTick(Clock::time_point now) = 0;
};

// Whether a request has lived for longer than it may (`limit` zero: it may for ever), and what its
// client is told.
bool IsOverdue(Clock::duration age, Clock::duration limit);
absl::Status OverdueError(Clock::duration limit);

class Handler {
 public:
  virtual ~Handler() = default;

  // Answers through `writer`, now (returns nullptr) or later (returns the exchange, which the
  // connection keeps until it has ended).
  virtual std::shared_ptr<Exchange> Handle(HttpRequest request, ResponseWriter* writer) = 0;

  // The body of an error that the transport found (400, 408, 413, 431...), in the shape that errors
  // have at `path`; empty: not known.
  virtual HttpResponse MakeError(int status, std::string_view message, std::string_view path) = 0;

  // A client that could not, or would not, speak TLS as it must here.
  virtual void OnHandshakeFailed(std::string_view reason) = 0;

  // Once per request that got as far as a method and a path, after its last byte.
  virtual void OnFinished(const RequestRecord& record) = 0;
};

}  // namespace heddle::server
