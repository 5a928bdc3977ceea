// Answers the routes of router.h. One per I/O thread.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/router.h"
#include "server/http/server_context.h"
#include "server/openai/api_error.h"

namespace heddle::server {

class ApiHandler final : public Handler {
 public:
  ApiHandler(ServerContext* context, PostTask post);
  ~ApiHandler() override;

  std::shared_ptr<Exchange> Handle(HttpRequest request, ResponseWriter* writer) override;
  HttpResponse MakeError(int status, std::string_view message, std::string_view path) override;
  void OnHandshakeFailed(std::string_view reason) override;
  void OnFinished(const RequestRecord& record) override;

 private:
  TraceContext Trace(const Route* route, const HttpRequest& request);
  std::shared_ptr<Exchange> Prepare(RouteId route, uint64_t tenant, HttpRequest request,
                                    ResponseWriter* writer);
  absl::StatusOr<HttpResponse> Respond(const RouteMatch& match, uint64_t tenant,
                                       const HttpRequest& request);
  absl::StatusOr<HttpResponse> Health() const;
  std::string Metrics() const;
  HttpResponse Index(const HttpRequest& request) const;
  ConnectionFigures connections() const;
  absl::Status CheckServing() const;  // whether requests get done
  absl::Status CheckReady() const;    // whether more of them should be sent here
  absl::Status CheckEngine() const;
  // The number of the API key that came with the request, from 1; 0 where none is needed.
  absl::StatusOr<uint64_t> CheckKey(const Route& route, const HttpRequest& request) const;
  // Counts a request that does work (POST) against the limits of its key and of the server.
  absl::Status Admit(uint64_t tenant, const HttpRequest& request, RequestRecord* record) const;
  HttpResponse NoRoute(const RouteMatch& match, const HttpRequest& request) const;
  // `path` decides the shape of the error.
  HttpResponse ErrorResponse(const ApiError& error, std::string_view path) const;
  void Decorate(HttpResponse* response) const;
  RequestContext NewRequestContext(uint64_t tenant);

  ServerContext* context_;
  std::shared_ptr<EventInbox> inbox_;
  std::mt19937_64 random_;
};

}  // namespace heddle::server
