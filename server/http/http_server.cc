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
  return limits;
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
  TransportOptions transport{options.host, options.port, options.io_threads,
                             options.max_connections};
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
  } else if (state_->context.readiness == Readiness::kReady) {
    state_->context.readiness = Readiness::kDraining;
  }
}

bool HttpServer::Drain(Clock::time_point deadline) {
  SetReady(false);
  return state_->transport->Drain(deadline);
}

void HttpServer::Stop() { state_->transport->Stop(); }

}  // namespace heddle::server
