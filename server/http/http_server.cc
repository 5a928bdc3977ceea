#include "server/http/http_server.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "server/http/api_handler.h"
#include "server/http/connection.h"
#include "server/http/first_bytes.h"
#include "server/http/http2_connection.h"
#include "server/http/server_context.h"
#include "server/http/transport.h"

namespace heddle::server {

struct HttpServer::State {
  explicit State(const HttpServerOptions& options)
      : context(static_cast<int64_t>(options.max_pending_body_bytes)) {}

  ConnectionLimits limits;
  ServerContext context;
  std::unique_ptr<Transport> transport;
};

namespace {

ConnectionLimits LimitsOf(const HttpServerOptions& options) {
  ConnectionLimits limits;
  limits.parser.max_body_bytes = options.max_body_bytes;
  limits.parser.max_header_bytes = options.max_header_bytes;
  limits.header_timeout = options.header_timeout;
  limits.body_timeout = options.body_timeout;
  limits.body_stall_timeout = options.body_stall_timeout;
  limits.idle_timeout = options.idle_timeout;
  limits.write_timeout = options.write_timeout;
  limits.keep_alive_interval = options.sse_keep_alive;
  limits.max_unsent_bytes = options.max_buffered_bytes;
  return limits;
}

// Frequent enough for the shortest of the limits.
Clock::duration TickInterval(const ConnectionLimits& limits) {
  constexpr Clock::duration kMost = std::chrono::milliseconds(250);
  const Clock::duration shortest =
      std::min({limits.header_timeout, limits.body_timeout, limits.body_stall_timeout,
                limits.idle_timeout, limits.write_timeout, limits.keep_alive_interval});
  return std::min(kMost, shortest / 4 + std::chrono::milliseconds(1));
}

// Ids of "req-" and 16 hexadecimal digits, unlikely to repeat between processes.
class RequestIds {
 public:
  RequestIds() : random_(std::random_device{}()) {}
  std::string Next() {
    return absl::StrFormat("req-%08x%08x", static_cast<uint32_t>(random_()),
                           static_cast<uint32_t>(random_()));
  }

 private:
  std::mt19937 random_;
};

// The connections of one I/O thread, and the handler that they share.
class HttpConnections final : public ConnectionFactory {
 public:
  HttpConnections(const Connection::Shared& shared, std::unique_ptr<Handler> handler)
      : shared_(shared), handler_(std::move(handler)) {}

  std::shared_ptr<TransportConnection> Make(
      std::unique_ptr<Stream> stream, TransportConnection::ClosedCallback on_closed) override {
    return std::make_shared<FirstBytes>(
        std::move(stream), handler_.get(), shared_.limits->header_timeout,
        [this](std::unique_ptr<Stream> begun, bool is_http2, std::string bytes,
               TransportConnection::ClosedCallback closed) {
          return MakeNext(std::move(begun), is_http2, std::move(bytes), std::move(closed));
        },
        std::move(on_closed));
  }

  std::string RefusalText() override {
    HttpResponse response = handler_->MakeError(503, "the server has too many connections", "");
    response.headers.emplace_back("Retry-After", "5");
    return ResponseHead(response, BodyFraming::kLength, response.body.size(),
                        /*keep_alive=*/false, "") +
           response.body;
  }
  void OnRefused(Refusal refusal) override { handler_->OnRefused(refusal); }
  void OnException() override { handler_->OnException("transport", "").IgnoreError(); }

 private:
  std::shared_ptr<TransportConnection> MakeNext(std::unique_ptr<Stream> stream, bool is_http2,
                                                std::string first_bytes,
                                                TransportConnection::ClosedCallback on_closed) {
    auto new_id = [this] { return ids_.Next(); };
    if (is_http2) {
      return std::make_shared<Http2Connection>(std::move(stream), std::move(first_bytes),
                                               handler_.get(), shared_, std::move(new_id),
                                               std::move(on_closed));
    }
    return std::make_shared<Connection>(std::move(stream), std::move(first_bytes), handler_.get(),
                                        shared_, std::move(new_id), std::move(on_closed));
  }

  const Connection::Shared shared_;
  const std::unique_ptr<Handler> handler_;
  RequestIds ids_;
};

// The keys given as texts, followed by those of the file.
std::vector<ApiKey> AllKeys(const HttpServerOptions& options,
                            const std::vector<ApiKey>& hashed_keys) {
  std::vector<ApiKey> keys;
  auto add = [&keys](std::string_view kind, const std::string& key, bool admin, KeyLimits limits) {
    keys.push_back({.name = std::string(kind) + "-" + std::to_string(keys.size() + 1),
                    .sha256 = HashKey(key),
                    .admin = admin,
                    .limits = limits});
  };
  for (const std::string& key : options.api_keys) add("key", key, false, options.key_limits);
  for (const std::string& key : options.admin_keys) add("admin", key, true, {});
  keys.insert(keys.end(), hashed_keys.begin(), hashed_keys.end());
  return keys;
}

bool SharesPerKey(PrefixCacheScope scope, size_t num_keys) {
  return scope == PrefixCacheScope::kKey || (scope == PrefixCacheScope::kAuto && num_keys > 1);
}

void SetUpAccess(const HttpServerOptions& options, ServerContext* context) {
  context->access.Replace(AllKeys(options, options.hashed_keys));
  // A file may have more keys later, which must not share what was cached before.
  const size_t num_keys = options.keys_may_change ? 2 : context->access.current()->size();
  context->cache_spaces =
      std::make_unique<const CacheSpaces>(SharesPerKey(options.prefix_cache_scope, num_keys));
  context->everyone =
      std::make_shared<KeyAccount>(KeyLimits{.concurrency = options.max_open_requests});
}

}  // namespace

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HttpServerOptions& options, const HttpDependencies& dependencies) {
  auto state = std::make_unique<State>(options);
  ServerContext* context = &state->context;
  context->options = options;
  context->dependencies = dependencies;
  context->page = MakeWebPage(dependencies.codec->has_chat_template());
  SetUpAccess(options, context);
  if (!options.batch.folder.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(context->batch, BatchService::Open(options.batch));
  }
  context->prepare = std::make_unique<PreparePool>(
      PreparePool::Options{.short_threads = options.prepare_threads,
                           .long_threads = options.prepare_threads,
                           .free_threads = options.free_prepare_threads,
                           .max_waiting = options.max_preparing});
  if (options.branches.max_branches > 0) {
    context->branches = std::make_unique<BranchTable>(options.branches, dependencies.generation,
                                                      std::random_device()());
  }
  context->background = std::make_shared<BackgroundResponses>(context);
  for (int i = 0; i < kNumRefusals; ++i) {
    dependencies.metrics->CountRefusal(RefusalName(static_cast<Refusal>(i)), 0);
  }
  state->limits = LimitsOf(options);
  const TransportOptions transport{.host = options.host,
                                   .port = options.port,
                                   .io_threads = options.io_threads,
                                   .max_connections = options.max_connections,
                                   .tls = dependencies.tls,
                                   .tick = TickInterval(state->limits)};
  const Connection::Shared shared{&state->limits, &context->unsent, &context->bodies,
                                  &context->resets};
  const auto make_factory = [context, shared](PostTask post) {
    return std::make_unique<HttpConnections>(
        shared, std::make_unique<ApiHandler>(context, std::move(post)));
  };
  HEDDLE_ASSIGN_OR_RETURN(state->transport,
                          Transport::Start(transport, make_factory, dependencies.log));
  context->transport = state->transport.get();
  if (context->batch != nullptr) context->batch->Start(context);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

uint16_t HttpServer::port() const { return state_->transport->port(); }

std::unique_ptr<Handler> HttpServer::NewHandler(PostTask post) {
  return std::make_unique<ApiHandler>(&state_->context, std::move(post));
}

void HttpServer::ReplaceKeys(const std::vector<ApiKey>& hashed_keys) {
  state_->context.access.Replace(AllKeys(state_->context.options, hashed_keys));
}

BodyBudget* HttpServer::bodies() { return &state_->context.bodies; }
PeerResets* HttpServer::resets() { return &state_->context.resets; }

const Logger* HttpServer::log() const { return state_->context.dependencies.log; }

void HttpServer::CountRefusal(Refusal refusal) {
  state_->context.dependencies.metrics->CountRefusal(RefusalName(refusal));
}

void HttpServer::SetReady(bool ready) {
  if (ready) {
    state_->context.readiness = Readiness::kReady;
  } else if (state_->context.readiness != Readiness::kLoading) {
    state_->context.readiness = Readiness::kDraining;
  }
}

void HttpServer::Leave() {
  if (state_->context.readiness == Readiness::kReady) {
    state_->context.readiness = Readiness::kLeaving;
  }
  state_->transport->Leave();
}

bool HttpServer::Drain(Clock::time_point deadline) {
  SetReady(false);
  if (state_->context.batch != nullptr) state_->context.batch->Stop();
  const bool all_answered = state_->transport->Drain(deadline);
  return state_->context.background->Drain(deadline) && all_answered;
}

void HttpServer::Stop() {
  if (state_->context.batch != nullptr) state_->context.batch->Stop();
  state_->transport->Stop();
  state_->context.background->Stop();
  state_->context.prepare->Stop();  // it uses objects that the caller may destroy now
}

}  // namespace heddle::server
