// The HTTP front end as one object: OpenAI's routes, health, metrics, over one listening address.
//
// Threads: its own I/O threads do the work, and others prepare what takes long. Start, SetReady,
// Drain and Stop are called by the one thread that owns the server; none of them is called by the
// engine loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/access/api_keys.h"
#include "server/generation.h"
#include "server/http/exchange.h"
#include "server/http/message.h"
#include "server/http/transport.h"
#include "server/log.h"
#include "server/metrics/server_metrics.h"
#include "server/openai/openai_request.h"
#include "server/openai/text_codec.h"
#include "server/tls/tls_context.h"
#include "server/trace/span_exporter.h"

namespace heddle::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // address or name; loopback unless told
  uint16_t port = 8000;            // 0: any free one
  int io_threads = 1;
  // That prepare requests (prepare_pool.h): of each lane, those that take moments and those that
  // take longer; and how many requests may wait for them.
  int prepare_threads = 2;
  size_t max_preparing = 1024;
  int max_connections = 4096;
  size_t max_body_bytes = size_t{8} << 20;
  size_t max_header_bytes = size_t{16} << 10;
  Clock::duration header_timeout = std::chrono::seconds(10);
  Clock::duration body_timeout = std::chrono::seconds(30);
  Clock::duration idle_timeout = std::chrono::seconds(75);
  Clock::duration write_timeout = std::chrono::seconds(30);
  Clock::duration sse_keep_alive = std::chrono::seconds(15);
  // Longest life of a generation request; then it ends in an error. Zero: no limit.
  Clock::duration request_timeout = Clock::duration::zero();
  // What a client that reads slowly may leave unread before its request is cancelled.
  size_t max_buffered_bytes = size_t{1} << 20;
  // No step ended for so long while requests wait: the engine hangs, and /health fails.
  Clock::duration step_timeout = std::chrono::seconds(60);
  std::vector<std::string> api_keys;  // "Authorization: Bearer KEY"; none at all: everyone may ask
  std::vector<ApiKey> hashed_keys;    // further ones, with limits of their own
  std::vector<std::string> admin_keys;  // that may see /debug, too
  KeyLimits key_limits;                 // of each of api_keys
  int64_t max_open_requests = 0;        // generation requests in progress, of all keys; 0: any
  std::string cors_origin;              // "*" or one origin; empty: no CORS headers
  ServerMetrics::Names metric_names = ServerMetrics::Names::kOwn;
  RequestPolicy policy;
  double trace_sample_ratio = 1;  // of traces that begin here
  std::string version = "0.1.0";
};

// All outlive the server.
struct HttpDependencies {
  GenerationService* generation = nullptr;
  const TextCodec* codec = nullptr;
  const ServedModel* model = nullptr;
  ServerMetrics* metrics = nullptr;
  const Logger* log = nullptr;
  const TlsContext* tls = nullptr;  // nullptr: plain HTTP
  SpanExporter* spans = nullptr;    // nullptr: none are made
};

class HttpServer {
 public:
  // Listens and answers; not ready until SetReady(true). UNAVAILABLE: the address is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           const HttpDependencies& dependencies);
  ~HttpServer();  // Stop()

  uint16_t port() const;

  // A handler of the same routes, keys, limits and metrics for another transport (gRPC). It must be
  // gone before the server is.
  std::unique_ptr<Handler> NewHandler(PostTask post);

  // False: /ready and new generation requests answer 503.
  void SetReady(bool ready);

  // /ready answers 503 and each answer ends its connection, so that clients and load balancers go
  // elsewhere; whatever comes is still served. Before a Drain.
  void Leave();

  // Stops accepting, waits until the requests in progress are answered, at most until `deadline`.
  // True: all were.
  bool Drain(Clock::time_point deadline);

  // Drops what is left; its requests are cancelled. Idempotent.
  void Stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace heddle::server
