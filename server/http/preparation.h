// What a request needs before its work can begin, by route: its body read, the chat template
// rendered, texts as tokens, grammars compiled. Private to server/http/.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/generation_routes.h"
#include "server/http/router.h"
#include "server/http/server_context.h"

namespace heddle::server {

class Preparation {
 public:
  virtual ~Preparation() = default;

  // On any thread, but on one at a time; touches nothing of a connection. `quick`: the thread has
  // others to serve; TakesLong (openai_request.h): it is to be called again, without haste.
  virtual absl::Status Read(bool quick) = 0;

  // Once Read has returned OK, on the request's I/O thread: answers (returns nullptr), or returns
  // the exchange that will. On an error nothing was sent.
  virtual absl::StatusOr<std::shared_ptr<Exchange>> Begin() = 0;
};

// What any preparation is made of. `server`, `inbox` and `writer` outlive the request.
struct PreparationParts {
  ServerContext* server = nullptr;
  EventInbox* inbox = nullptr;
  ResponseWriter* writer = nullptr;
  RouteId route{};
  HttpRequest request;
  RequestContext context;
  AnswerIdentity identity;
  std::function<void(HttpResponse*)> decorate;  // adds headers that every response has
};

// Whether requests of a route are prepared: those that run through the engine, and those that are
// about tokens.
bool NeedsPreparation(RouteId id);

// REQUIRES: NeedsPreparation(parts.route).
std::unique_ptr<Preparation> MakePreparation(PreparationParts parts);

}  // namespace heddle::server
