// The gRPC front end: heddle.v1.Inference, the Open Inference Protocol, the standard health service
// and reflection, on one listening address. It is a second transport of the HTTP server's API.
//
// Clients' connections, and their TLS, are handled by our code; gRPC's library speaks with each
// client through a guard (http2_guard.h) that bounds its cost.
//
// Threads: `workers` threads for connections, as many for calls, and gRPC's own. Start, SetReady
// and Stop are called by the one thread that owns the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/generation.h"
#include "server/grpc/guarded_connection.h"
#include "server/http/http_server.h"
#include "server/tls/tls_context.h"

namespace heddle::server {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port
  int workers = 1;
  // Further connections replace idle ones; if none is idle they are closed.
  int max_connections = 4096;
  int max_calls = 4096;  // in progress; further ones get RESOURCE_EXHAUSTED
  GuardOptions guard;
  size_t max_message_bytes = size_t{8} << 20;  // per request
  std::string version;
  std::string model_id;
  TlsOptions tls;  // not enabled: no TLS
};

class GrpcServer {
 public:
  // `api` and `generation` outlive the server. UNAVAILABLE: the address is in use.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           HttpServer* api,
                                                           const GenerationService* generation);
  ~GrpcServer();  // Stop(now)

  uint16_t port() const;

  // Reads the certificate files again if any has changed; see TlsContext.
  absl::StatusOr<bool> ReloadTlsIfChanged();
  absl::Status ReloadTls();

  // Sets the state that the health service and ServerReady report.
  void SetReady(bool ready);

  // Takes no new calls, waits until `deadline` for those in progress to end and for their clients
  // to have received all, then cancels them. Idempotent.
  void Stop(std::chrono::system_clock::time_point deadline);

 private:
  struct State;
  explicit GrpcServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace heddle::server
