// The HTTP front end as one object: OpenAI's routes, health and metrics on one listening address.
//
// Threads: its own I/O threads do the work, and others prepare what takes long. The one thread that
// owns the server calls Start, SetReady, Drain and Stop; the engine loop calls none of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/access/api_keys.h"
#include "server/adapters/adapter_registry.h"
#include "server/adapters/adapter_sets.h"
#include "server/branches/branch_table.h"
#include "server/generation.h"
#include "server/http/batch_service.h"
#include "server/http/body_budget.h"
#include "server/http/exchange.h"
#include "server/http/http_message.h"
#include "server/http/peer_resets.h"
#include "server/http/transport.h"
#include "server/log.h"
#include "server/metrics/server_metrics.h"
#include "server/openai/openai_request.h"
#include "server/reward/reward_client.h"
#include "server/text/text_codec.h"
#include "server/tls/tls_context.h"
#include "server/tracing/span_exporter.h"

namespace heddle::server {

// The requests that share computed prompts (server/access/cache_spaces.h).
enum class PrefixCacheScope : uint8_t {
  kAuto,  // kKey with several keys, else kAll
  kKey,   // requests of one key
  kAll,
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // address or name; loopback by default
  uint16_t port = 8000;            // 0: any free port
  int io_threads = 1;
  // Prepare threads per lane (prepare_pool.h), one lane for requests that take moments and one for
  // those that take longer; and how many requests may wait for them.
  int prepare_threads = 2;
  int free_prepare_threads = 0;  // of the second lane, beside those
  size_t max_preparing = 1024;
  int max_connections = 4096;
  size_t max_body_bytes = size_t{8} << 20;
  // Limit on the bodies of all requests being received, including gRPC's. A single larger body is
  // still taken, alone.
  size_t max_pending_body_bytes = size_t{256} << 20;
  size_t max_header_bytes = size_t{16} << 10;
  Clock::duration header_timeout = std::chrono::seconds(10);
  Clock::duration body_timeout = std::chrono::seconds(30);
  Clock::duration body_stall_timeout = std::chrono::seconds(2);  // while others wait for its memory
  Clock::duration idle_timeout = std::chrono::seconds(75);
  Clock::duration write_timeout = std::chrono::seconds(30);
  Clock::duration sse_keep_alive = std::chrono::seconds(15);
  // Longest life of a generation request, which then ends in an error. Zero: no limit.
  Clock::duration request_timeout = Clock::duration::zero();
  // Bytes that a client that reads slowly may leave unread before its request is cancelled.
  size_t max_buffered_bytes = size_t{1} << 20;
  // If no step ends for this long while requests wait, the engine hangs, and /health fails.
  Clock::duration step_timeout = std::chrono::seconds(60);
  std::vector<std::string> api_keys;  // "Authorization: Bearer KEY"; none: no check
  std::vector<ApiKey> hashed_keys;    // further keys, with their own limits
  bool keys_may_change = false;       // ReplaceKeys will be called
  PrefixCacheScope prefix_cache_scope = PrefixCacheScope::kAuto;
  std::vector<std::string> admin_keys;  // keys that may also see /debug
  KeyLimits key_limits;                 // limits of each of api_keys
  int64_t max_open_requests = 0;        // in progress, over all keys; 0: no limit
  std::string cors_origin;              // "*" or one origin; empty: no CORS headers
  ServerMetrics::Names metric_names = ServerMetrics::Names::kOwn;
  bool allow_adapter_updates = false;  // clients with an admin key may load and unload adapters
  BatchOptions batch;
  BranchLimits branches;
  RequestPolicy policy;
  double trace_sample_ratio = 1;  // share of the traces that begin here
  std::string version = "0.1.0";
};

// All of these outlive the server.
struct HttpDependencies {
  GenerationService* generation = nullptr;
  const TextCodec* codec = nullptr;
  const ServedModel* model = nullptr;
  ServerMetrics* metrics = nullptr;
  const Logger* log = nullptr;
  const TlsContext* tls = nullptr;      // nullptr: plain HTTP
  SpanExporter* spans = nullptr;        // nullptr: no spans
  RewardClient* rewards = nullptr;      // nullptr: RequestPolicy::has_reward_model is false
  AdapterRegistry* adapters = nullptr;  // nullptr: the base model alone
  AdapterSets* adapter_sets = nullptr;  // of `adapters`
};

class HttpServer {
 public:
  // Listens and answers; not ready until SetReady(true). UNAVAILABLE: the address is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           const HttpDependencies& dependencies);
  ~HttpServer();  // Stop()

  uint16_t port() const;

  // A handler of the same routes, keys, limits and metrics for another transport (gRPC). It must be
  // destroyed before the server.
  std::unique_ptr<Handler> NewHandler(PostTask post);

  // Replaces hashed_keys. Requests in progress continue; keys that stay keep their accounts.
  void ReplaceKeys(const std::vector<ApiKey>& hashed_keys);

  // For another transport: the shared budget of bodies, what clients have taken back over all
  // transports, our log, and our metrics of refusals.
  BodyBudget* bodies();
  PeerResets* resets();
  const Logger* log() const;
  void CountRefusal(Refusal refusal);

  // With false, /ready and new generation requests answer 503.
  void SetReady(bool ready);

  // /ready answers 503 and each answer ends its connection, so that clients and load balancers go
  // elsewhere; requests are still served. Precedes a Drain.
  void Leave();

  // Stops accepting and waits until the requests in progress are answered, at most until
  // `deadline`. Returns true if all were.
  bool Drain(Clock::time_point deadline);

  // Drops the remaining requests, which are cancelled. Idempotent.
  void Stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace heddle::server
