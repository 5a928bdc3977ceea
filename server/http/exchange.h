// The interface between the transport (sockets, framing, limits) and the code that answers
// requests.
//
// Everything here runs on the I/O thread of the request's connection: a Handler and an Exchange are
// never used by two threads at once for one request, and must not block.
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
#include "server/http/http_message.h"
#include "server/tracing/trace_context.h"

namespace heddle::server {

// How a request ended, for logs and metrics.
enum class Outcome : uint8_t {
  kSuccess,
  kClientError,  // 4xx except 429
  kServerError,  // 5xx except 503, or an error in the middle of a stream
  kRejected,     // 429 and 503: no room, or draining
  kCancelled,    // the client left, or stopped reading
};

std::string_view OutcomeName(Outcome outcome);  // "success", "client_error"...

struct RequestRecord;
Outcome OutcomeOf(const RequestRecord& record, bool cancelled);

// The record of a finished request. The transport fills in what it sees; the answering code fills
// in the rest while the request lives.
struct RequestRecord {
  std::string method;
  std::string path;   // as logged
  std::string route;  // pattern, for metrics: "/v1/models/{id}"; empty: no route
  std::string request_id;
  std::string key_name;         // name of its API key; never the key
  uint64_t peer = 0;            // HttpRequest::peer
  int32_t weight = 1;           // of its client's share of the machine
  bool is_background = false;   // nobody waits for it: it yields to those of clients
  bool is_handed_over = false;  // another record counts what it asked for
  TraceContext trace;           // the client's traceparent, or a new trace; may be empty
  int status = 0;               // 0: closed before a status was sent
  Outcome outcome = Outcome::kSuccess;
  bool failed_midway = false;  // the stream ended in an error event
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t cached_tokens = 0;        // prompt tokens
  double prepared_seconds = -1;     // until its body was read and prepared; negative: never
  double queued_seconds = -1;       // until the first step; negative: it had none
  double first_token_seconds = -1;  // from the complete request; negative: none
  double last_event_seconds = -1;   // until the engine's last event; negative: none
  double total_seconds = 0;
  // The request's parameters and its choices' ends, for spans.
  struct Asked {
    int32_t max_tokens = 0;
    float temperature = 0;
    float top_p = 0;
    int32_t choices = 1;
  };
  std::optional<Asked> asked;
  std::vector<std::string> finish_reasons;
  // Headers of the answer, whoever writes it.
  std::vector<std::pair<std::string, std::string>> answer_headers;
  std::vector<std::shared_ptr<KeyAccount>> accounts;  // accounts that count the request
};

// The way back to the client, implemented by Connection. It lives as long as the exchange.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // Sends a whole answer and ends the exchange: nothing else may be called after it.
  virtual void Send(HttpResponse response) = 0;

  // Sends the head of an answer whose body comes piece by piece (server-sent events). When nothing
  // was sent for a while, the transport sends `keep_alive`.
  virtual void StartStream(HttpResponse head, std::string_view keep_alive) = 0;
  virtual void Write(std::string_view data) = 0;
  virtual void EndStream() = 0;  // ends the exchange

  // Bytes that the client has not taken yet.
  virtual size_t buffered_bytes() const = 0;

  // Whether the client has left much unread for some time (reading_pace.h), so that there should be
  // no more for now. Exchange::OnCaughtUp follows when this ends.
  virtual bool is_behind() const = 0;

  // Whether the client leaves more unread than allowed: the writing code then calls Abort.
  virtual bool is_overfull() const = 0;

  // Closes the connection at once. Ends the exchange.
  virtual void Abort() = 0;

  virtual RequestRecord& record() = 0;
};

// A request that has no answer yet.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // The client is gone, or took nothing for too long, or the server stops. The writer must not be
  // used any more.
  virtual void OnDisconnect() = 0;

  // The client was behind (ResponseWriter::is_behind), and has read since.
  virtual void OnCaughtUp() {}

  // The client has taken all that was written of a stream so far.
  virtual void OnDrained() {}

  // Called a few times a second, for time limits.
  virtual void OnTick(Clock::time_point now) = 0;
};

// Whether a request has lived longer than `limit` (zero: no limit), and the error for its client.
bool IsOverdue(Clock::duration age, Clock::duration limit);
absl::Status OverdueError(Clock::duration limit);
// The limit for a request: what nobody waits for has none.
inline Clock::duration LifeLimit(const RequestRecord& record, Clock::duration limit) {
  return record.is_background ? Clock::duration::zero() : limit;
}

// Reasons of the transport to refuse something, to protect the server; the labels of a metric
// (docs/metrics.md).
enum class Refusal : uint8_t {
  kConnection,   // too many connections, and none was idle
  kIdle,         // an idle connection had to make room for a new one
  kSlowHeader,   // the header did not arrive in time
  kSlowBody,     // the body did not arrive in time, or stalled while others waited for its memory
  kBodyMemory,   // waited in vain for memory for its body
  kOutOfMemory,  // out of memory, or another exception
  kGrpcResets,   // a gRPC client reset too many calls
  kGrpcFlood,    // a gRPC client sent too many frames that carry nothing
  kGrpcFrame,    // a gRPC client sent invalid HTTP/2
  kGrpcMemory,   // there was no memory for a gRPC message
  kGrpcCalls,    // too many gRPC calls
  kHttp2Resets,  // an HTTP/2 client took back too many requests
  kHttp2Flood,   // an HTTP/2 client sent too many frames that carry nothing
  kHttp2Frame,   // an HTTP/2 client sent invalid frames, or a header in too many pieces
};
inline constexpr int kNumRefusals = 14;

std::string_view RefusalName(Refusal refusal);  // "connection", "idle"...

class Handler {
 public:
  virtual ~Handler() = default;

  // Called when the header has arrived, before the body is awaited: returns an answer that no body
  // would change (no such route, no key), which is then sent at once. Fills in the route of
  // `record`.
  virtual std::optional<HttpResponse> CheckHead(const HttpRequest& head, RequestRecord* record) = 0;

  // Answers through `writer`, now (returns nullptr) or later (returns the exchange, which the
  // connection keeps until it has ended).
  virtual std::shared_ptr<Exchange> Handle(HttpRequest request, ResponseWriter* writer) = 0;

  // The response for an error that the transport found (400, 408, 413, 431...), in the shape that
  // errors have at `path`; empty: not known.
  virtual HttpResponse MakeError(int status, std::string_view message, std::string_view path) = 0;

  // A client failed the TLS handshake.
  virtual void OnHandshakeFailed(std::string_view reason) = 0;

  // Counts a refusal in metrics.
  virtual void OnRefused(Refusal refusal) = 0;

  // An exception reached the transport: writes a log line, counts it, and returns the status for
  // the request's client (request_guard.h). REQUIRES: within a catch block.
  virtual absl::Status OnException(std::string_view place, std::string_view request_id) = 0;

  // Called once per request that had a method and a path, after its last byte.
  virtual void OnFinished(const RequestRecord& record) = 0;
};

}  // namespace heddle::server
