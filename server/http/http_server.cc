#include "server/http/http_server.h"

#include <utility>

#include "base/status.h"
#include "server/http/api_handler.h"
#include "server/http/connection.h"
#include "server/http/server_context.h"
#include "server/http/transport.h"

namespace heddle::server {

struct HttpServer::State {
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
  limits.idle_timeout = options.idle_timeout;
  limits.write_timeout = options.write_timeout;
  limits.keep_alive_interval = options.sse_keep_alive;
  limits.max_unsent_bytes = options.max_buffered_bytes;
  return limits;
}

// The keys given as texts first, so that --api-key's tenants keep their numbers.
std::vector<ApiKey> AllKeys(const HttpServerOptions& options) {
  std::vector<ApiKey> keys;
  auto add = [&keys](std::string_view kind, const std::string& key, bool admin, KeyLimits limits) {
    keys.push_back(
        {std::string(kind) + "-" + std::to_string(keys.size() + 1), HashKey(key), admin, limits});
  };
  for (const std::string& key : options.api_keys) add("key", key, false, options.key_limits);
  for (const std::string& key : options.admin_keys) add("admin", key, true, {});
  keys.insert(keys.end(), options.hashed_keys.begin(), options.hashed_keys.end());
  return keys;
}

void SetUpAccess(const HttpServerOptions& options, ServerContext* context) {
  context->keys = KeyRing(AllKeys(options));
  for (const ApiKey& key : context->keys.keys()) {
    context->accounts.push_back(std::make_shared<KeyAccount>(key.limits));
  }
  context->everyone =
      std::make_shared<KeyAccount>(KeyLimits{.concurrency = options.max_open_requests});
}

}  // namespace

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HttpServerOptions& options, const HttpDependencies& dependencies) {
  auto state = std::make_unique<State>();
  ServerContext* context = &state->context;
  context->options = options;
  context->dependencies = dependencies;
  SetUpAccess(options, context);
  context->prepare =
      std::make_unique<PreparePool>(PreparePool::Options{.short_threads = options.prepare_threads,
                                                         .long_threads = options.prepare_threads,
                                                         .max_waiting = options.max_preparing});
  TransportOptions transport{options.host, options.port, options.io_threads,
                             options.max_connections, dependencies.tls};
  HEDDLE_ASSIGN_OR_RETURN(state->transport, Transport::Start(
                                                transport, LimitsOf(options),
                                                [context](PostTask post) {
                                                  return std::make_unique<ApiHandler>(
                                                      context, std::move(post));
                                                },
                                                dependencies.log));
  context->transport = state->transport.get();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

uint16_t HttpServer::port() const { return state_->transport->port(); }

std::unique_ptr<Handler> HttpServer::NewHandler(PostTask post) {
  return std::make_unique<ApiHandler>(&state_->context, std::move(post));
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
  return state_->transport->Drain(deadline);
}

void HttpServer::Stop() {
  state_->transport->Stop();
  state_->context.prepare->Stop();  // it uses what the caller may take away now
}

}  // namespace heddle::server
