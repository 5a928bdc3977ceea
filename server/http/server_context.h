// The state that the handlers of all I/O threads and the preparing threads share. Private to
// server/http/.
// Thread-safety: options, dependencies, cache_spaces and page do not change once the transport
// runs, and the objects behind them may be used by any thread; the rest is thread-safe by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/access/access_table.h"
#include "server/access/cache_spaces.h"
#include "server/access/key_account.h"
#include "server/branches/branch_table.h"
#include "server/http/background_responses.h"
#include "server/http/batch_service.h"
#include "server/http/body_budget.h"
#include "server/http/connection.h"
#include "server/http/http_server.h"
#include "server/http/peer_resets.h"
#include "server/http/prepare_pool.h"
#include "server/http/transport.h"
#include "server/openai/conversation_store.h"
#include "server/openai/response_store.h"
#include "server/web/web_page.h"

namespace heddle::server {

enum class Readiness : uint8_t {
  kLoading,
  kReady,
  kLeaving,  // serves as before, and asks clients to go elsewhere
  kDraining,
};

struct ServerContext {
  explicit ServerContext(int64_t max_pending_body_bytes) : bodies(max_pending_body_bytes) {}

  HttpServerOptions options;
  HttpDependencies dependencies;
  BodyBudget bodies;                        // of every transport
  PeerResets resets{PeerResets::Limits()};  // of every transport
  UnsentBytes unsent;                       // of HTTP only
  ResponseStore responses;
  ConversationStore conversations;
  std::unique_ptr<BranchTable> branches;            // null: --max-branches 0
  std::shared_ptr<BackgroundResponses> background;  // set before the transport starts
  std::unique_ptr<PreparePool> prepare;             // set before the transport starts
  AccessTable access;                               // filled before the transport starts
  std::unique_ptr<const CacheSpaces> cache_spaces;  // set before the transport starts
  std::shared_ptr<KeyAccount> everyone;
  std::shared_ptr<BatchService> batch;  // null: there are no files and batches
  WebPage page;                         // set before the transport starts
  std::atomic<Readiness> readiness = Readiness::kLoading;
  std::atomic<const Transport*> transport = nullptr;  // set once it has started
};

}  // namespace heddle::server
