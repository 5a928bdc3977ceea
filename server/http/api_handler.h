// A request's way through server/http/: its route (router.h), its permission (gatekeeper.h), its
// answer, at once (immediate_routes.h) or after preparation (preparation.h), and its record
// (access_log.h). One handler per I/O thread.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/router.h"
#include "server/http/server_context.h"

namespace heddle::server {

class ApiHandler final : public Handler {
 public:
  ApiHandler(ServerContext* context, PostTask post);
  ~ApiHandler() override;

  std::shared_ptr<Exchange> Handle(HttpRequest request, ResponseWriter* writer) override;
  std::optional<HttpResponse> CheckHead(const HttpRequest& head, RequestRecord* record) override;
  HttpResponse MakeError(int status, std::string_view message, std::string_view path) override;
  void OnHandshakeFailed(std::string_view reason) override;
  absl::Status OnException(std::string_view place, std::string_view request_id) override;
  void OnRefused(Refusal refusal) override;
  void OnFinished(const RequestRecord& record) override;

 private:
  std::shared_ptr<Exchange> Answer(HttpRequest request, ResponseWriter* writer);
  TraceContext Trace(const Route* route, const HttpRequest& request);
  std::shared_ptr<Exchange> Prepare(const RouteMatch& match, uint64_t tenant, HttpRequest request,
                                    ResponseWriter* writer);
  // `path` decides the shape of the error.
  HttpResponse Refuse(const absl::Status& status, std::string_view path) const;
  RequestContext NewRequestContext(uint64_t tenant);

  ServerContext* context_;
  std::shared_ptr<EventInbox> inbox_;
  std::mt19937_64 random_;
};

}  // namespace heddle::server
