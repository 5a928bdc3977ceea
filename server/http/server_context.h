// What the handlers of all I/O threads share. Private to server/http/.
#pragma once

#include <atomic>
#include <cstdint>

#include "server/http/http_server.h"
#include "server/http/transport.h"
#include "server/web/web_page.h"

namespace heddle::server {

enum class Readiness : uint8_t { kLoading, kReady, kDraining };

struct ServerContext {
  HttpServerOptions options;
  HttpDependencies dependencies;
  const WebPage page = MakeWebPage();
  std::atomic<Readiness> readiness = Readiness::kLoading;
  std::atomic<const Transport*> transport = nullptr;  // set once it has started
};

}  // namespace heddle::server
