// What the handlers of all I/O threads and the threads that prepare requests share. Private to
// server/http/.
//
// Thread-safety: options, dependencies, keys, accounts' pointers and page do not change once the
// transport runs, and what they lead to may be used by any thread; the rest is safe by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/access/key_account.h"
#include "server/http/http_server.h"
#include "server/http/prepare_pool.h"
#include "server/http/transport.h"
#include "server/openai/response_store.h"
#include "server/web/web_page.h"

namespace heddle::server {

enum class Readiness : uint8_t {
  kLoading,
  kReady,
  kLeaving,  // serves as before, and asks to be sent no more
  kDraining,
};

struct ServerContext {
  HttpServerOptions options;
  HttpDependencies dependencies;
  ResponseStore responses;
  std::unique_ptr<PreparePool> prepare;               // from before the transport starts
  KeyRing keys;                                       // set before the transport starts
  std::vector<std::shared_ptr<KeyAccount>> accounts;  // per key of the ring
  std::shared_ptr<KeyAccount> everyone;
  const WebPage page = MakeWebPage();
  std::atomic<Readiness> readiness = Readiness::kLoading;
  std::atomic<const Transport*> transport = nullptr;  // set once it has started
};

}  // namespace heddle::server
