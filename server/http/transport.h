// Listens, accepts, and runs the I/O threads that own the connections, of whatever protocol.
// Threads: `io_threads` of its own. Each has its connections and its own ConnectionFactory, so that
// two of them share nothing on the way of a request. One outside thread calls Start, Drain and
// Stop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/exchange.h"
#include "server/log.h"
#include "server/tls/tls_context.h"

namespace heddle::server {

class Stream;

// One of a transport's connections, on its I/O thread. It closes by itself, or when it is told to,
// and reports that once.
class TransportConnection {
 public:
  using ClosedCallback = std::function<void(TransportConnection*)>;

  virtual ~TransportConnection() = default;

  virtual void Start() = 0;
  virtual void Leave() = 0;  // continues, but the next answer is the last
  virtual void Drain() = 0;  // closes as soon as nothing is in progress
  virtual void Close() = 0;
  virtual void OnTick(Clock::time_point now) = 0;

  // Since when it has been idle, so that it may be closed to make room; the end of time if it is
  // busy. Times to come are those of connections that give way last.
  virtual Clock::time_point idle_since() const = 0;
};

// Makes the connections of one I/O thread, and is told of events beside them.
class ConnectionFactory {
 public:
  virtual ~ConnectionFactory() = default;

  virtual std::shared_ptr<TransportConnection> Make(
      std::unique_ptr<Stream> stream, TransportConnection::ClosedCallback on_closed) = 0;

  // The text for a client whose connection is one too many; empty: none.
  virtual std::string RefusalText() = 0;
  virtual void OnRefused(Refusal refusal) = 0;
  virtual void OnException() = 0;  // REQUIRES: within a catch block
};

struct TransportOptions {
  std::string host = "127.0.0.1";  // address or name to listen on
  uint16_t port = 8000;            // 0: any free port
  int io_threads = 1;
  // Further connections replace idle ones; if none is idle they get a 503 and are closed.
  int max_connections = 4096;
  const TlsContext* tls = nullptr;  // outlives the transport; nullptr: no TLS
  Clock::duration tick = std::chrono::milliseconds(250);
  std::string thread_name = "http-io";
};

// A handler's access to its thread: runs a task on it, soon. Callable from any thread, until the
// handler is destroyed.
using PostTask = std::function<void(std::function<void()>)>;
using HandlerFactory = std::function<std::unique_ptr<Handler>(PostTask)>;
using MakeFactory = std::function<std::unique_ptr<ConnectionFactory>(PostTask)>;

// Whether Start could listen there now, with its errors; the address is not kept. For programs that
// work for a long time before they start.
absl::Status CheckAddress(const std::string& host, uint16_t port);

class Transport {
 public:
  // Binds, listens and starts; `log` outlives the transport. UNAVAILABLE: the address is in use;
  // INVALID_ARGUMENT: the host is invalid.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(const TransportOptions& options,
                                                          const MakeFactory& make_factory,
                                                          const Logger* log);
  ~Transport();  // Stop()

  uint16_t port() const;
  int open_connections() const;

  // From now on each answer ends its connection. It accepts and serves as before.
  void Leave();

  // Stops accepting, closes idle connections, and waits until the others have finished their
  // request, at most until `deadline`. Returns true if none is left.
  bool Drain(Clock::time_point deadline);

  // Closes everything at once (exchanges are told) and joins the threads. Idempotent.
  void Stop();

 private:
  struct State;
  explicit Transport(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace heddle::server
