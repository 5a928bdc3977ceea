// The gRPC front end: heddle.v1.Inference, the Open Inference Protocol, the standard health service
// and reflection, over one listening address. A second transport of the HTTP server's API.
//
// Threads: gRPC's own for the network, `workers` of ours for the calls. Start, SetReady and Stop
// are called by the one thread that owns the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/generation.h"
#include "server/http/http_server.h"
#include "server/tls/tls_context.h"

namespace heddle::server {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int workers = 1;
  size_t max_message_bytes = size_t{8} << 20;  // of a request
  std::string version;
  std::string model_id;
  TlsOptions tls;  // not enabled: no TLS. gRPC itself looks for new files now and then
};

class GrpcServer {
 public:
  // `api` and `generation` outlive the server. UNAVAILABLE: the address is in use.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           HttpServer* api,
                                                           const GenerationService* generation);
  ~GrpcServer();  // Stop(now)

  uint16_t port() const;

  // What the health service and ServerReady say.
  void SetReady(bool ready);

  // Takes no new calls, waits for those in progress until `deadline`, then cancels them.
  // Idempotent.
  void Stop(std::chrono::system_clock::time_point deadline);

 private:
  struct State;
  explicit GrpcServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace heddle::server
