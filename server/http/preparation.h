// The work before a request can begin, by route: its body is read, the chat template rendered,
// texts tokenized, grammars compiled. Private to server/http/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

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

  // Called on any thread, one at a time; touches nothing of a connection. TakesLong
  // (openai_request.h) means that it is to be called again, with more patience.
  virtual absl::Status Read(const Patience& patience) = 0;

  // Called after Read has returned OK, on the request's I/O thread: answers (returns nullptr), or
  // returns the exchange that will. After an error nothing was sent.
  // REQUIRES: `adapter` is what model() names.
  virtual absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) = 0;

  // The model that the request is for; nullptr: it does not run. REQUIRES: Read has returned OK.
  virtual const ModelChoice* model() const { return nullptr; }
};

// The inputs of any preparation. `server`, `inbox` and `writer` outlive the request.
struct PreparationParts {
  ServerContext* server = nullptr;
  EventInbox* inbox = nullptr;
  ResponseWriter* writer = nullptr;
  RouteId route{};
  HttpRequest request;
  RequestContext context;
  AnswerIdentity identity;
};

// Makes the answer of a request that runs on no engine.
using MakeBody =
    std::function<absl::StatusOr<std::string>(std::string_view, const RequestContext&)>;

// Whether requests of a route are prepared: those that run on the engine, and those about tokens.
bool NeedsPreparation(RouteId id);

// REQUIRES: NeedsPreparation(parts.route).
std::unique_ptr<Preparation> MakePreparation(PreparationParts parts);

}  // namespace heddle::server
