// Listens, accepts, and runs the I/O threads that own the connections.
//
// Threads: `io_threads` threads of its own. Each has its connections and its own Handler, so that
// nothing on the way of a request is shared between two of them. Start, Drain and Stop are called
// by one outside thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/exchange.h"
#include "server/log.h"
#include "server/tls/tls_context.h"

namespace heddle::server {

struct ConnectionLimits;

struct TransportOptions {
  std::string host = "127.0.0.1";  // address or name to listen on
  uint16_t port = 8000;            // 0: any free one
  int io_threads = 1;
  int max_connections = 4096;       // more are told 503 and closed
  const TlsContext* tls = nullptr;  // outlives the transport; nullptr: plain HTTP
};

// What a Handler gets of its thread: runs a task on it, soon. Callable from any thread, until the
// handler is destroyed.
using PostTask = std::function<void(std::function<void()>)>;
using HandlerFactory = std::function<std::unique_ptr<Handler>(PostTask)>;

// Whether Start could listen there now, with its errors; nothing stays taken. For programs that do
// something long before they start.
absl::Status CheckAddress(const std::string& host, uint16_t port);

class Transport {
 public:
  // Binds, listens and starts. UNAVAILABLE: the address is in use; INVALID_ARGUMENT: the host is
  // none.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(const TransportOptions& options,
                                                          const ConnectionLimits& limits,
                                                          const HandlerFactory& make_handler,
                                                          const Logger* log);
  ~Transport();  // Stop()

  uint16_t port() const;
  int open_connections() const;
  int64_t unsent_bytes() const;  // that clients have not taken yet

  // From now on each answer ends its connection. Accepts, and goes on, as before.
  void Leave();

  // Stops accepting, closes idle connections, and waits until the others have finished their
  // request, at most until `deadline`. True: none is left.
  bool Drain(Clock::time_point deadline);

  // Closes everything at once (exchanges are told) and joins the threads. Idempotent.
  void Stop();

 private:
  struct State;
  explicit Transport(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace heddle::server
