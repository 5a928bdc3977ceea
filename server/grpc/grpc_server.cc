#include "server/grpc/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "server/grpc/guarded_connection.h"
#include "server/grpc/health_service.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/services.h"

namespace heddle::server {
namespace {

// A client that does not answer a ping in time is gone. Idle and old connections are closed:
// clients reconnect by themselves, which lets a load balancer distribute them again, and calls in
// progress continue.
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kLeastPingIntervalMs = 10'000;
constexpr int kMaxIdleMs = 300'000;
constexpr int kMaxAgeMs = 3'600'000;
constexpr int kMaxMetadataBytes = 16 << 10;
// Bytes of a message that a client may send before its call has been accepted.
constexpr int kWindowBytes = 32 << 10;
// The least time for the last messages of ended calls, from gRPC's end of a connection to the
// client; also once the deadline is over.
constexpr std::chrono::seconds kFarewell(2);

class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Dispatches every call of every service by its name.
class Dispatcher final : public grpc::CallbackGenericService {
 public:
  Dispatcher(ServiceContext* context, int max_calls, std::function<void()> on_too_many)
      : context_(context), max_calls_(max_calls), on_too_many_(std::move(on_too_many)) {
    AddAll(InferenceMethods(context));
    AddAll(OpenInferenceMethods(context));
    Add(health_.CheckMethod());
  }

  HealthService& health() { return health_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* call) override {
    if (context_->num_calls >= max_calls_) {
      on_too_many_();
      return Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls are in progress");
    }
    try {
      const auto found = methods_.find(call->method());
      if (found != methods_.end()) return NewMethodCall(&found->second, context_, *call);
      if (call->method() == HealthService::kWatch) return health_.NewWatchCall(context_, *call);
      if (call->method() == kReflection) return NewReflectionCall(&services_, context_, *call);
    } catch (...) {
      return Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "the server has no memory left");
    }
    return Refuse(grpc::StatusCode::UNIMPLEMENTED, "there is no such method here");
  }

 private:
  static RefusedCall* Refuse(grpc::StatusCode code, const char* message) {
    return new RefusedCall({code, message});
  }

  void Add(Method method) {
    std::string name = method.name;
    methods_.emplace(std::move(name), std::move(method));
  }
  void AddAll(std::vector<Method> methods) {
    for (Method& method : methods) Add(std::move(method));
  }

  ServiceContext* context_;
  const int max_calls_;
  const std::function<void()> on_too_many_;
  const ServiceNames services_{"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
                               "heddle.v1.Inference", "inference.GRPCInferenceService"};
  HealthService health_{std::set<std::string>(services_.begin(), services_.end())};
  std::unordered_map<std::string, Method> methods_;
};

// The connections of one I/O thread.
class GuardedConnections final : public ConnectionFactory {
 public:
  GuardedConnections(const GuardOptions& options, BodyBudget* bodies, PeerResets* resets,
                     const Logger* log, std::unique_ptr<Handler> handler,
                     std::function<void(int fd, uint64_t peer)> serve)
      : handler_(std::move(handler)),
        shared_{options,
                bodies,
                resets,
                log,
                std::move(serve),
                [this](Refusal refusal) { handler_->OnRefused(refusal); },
                [this](std::string_view reason) { handler_->OnHandshakeFailed(reason); },
                [this] { OnException(); }} {}

  std::shared_ptr<TransportConnection> Make(
      std::unique_ptr<Stream> stream, TransportConnection::ClosedCallback on_closed) override {
    return std::make_shared<GuardedConnection>(std::move(stream), &shared_, std::move(on_closed));
  }
  std::string RefusalText() override { return ""; }
  void OnRefused(Refusal refusal) override { handler_->OnRefused(refusal); }
  void OnException() override { handler_->OnException("gRPC connection", "").IgnoreError(); }

 private:
  const std::unique_ptr<Handler> handler_;
  const GuardedConnection::Shared shared_;
};

// gRPC's server, which does not listen but is given its connections.
std::unique_ptr<grpc::Server> Build(const GrpcServerOptions& options, Dispatcher* dispatcher) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options.guard.limits.max_streams)},
      {GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes},
      {GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPingIntervalMs},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxAgeMs},
      // Windows have a fixed size: a measured one grows to megabytes per call.
      {GRPC_ARG_HTTP2_BDP_PROBE, 0},
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes},
      {GRPC_ARG_ENABLE_CHANNELZ, 0},
      {GRPC_ARG_ALLOW_REUSEPORT, 0},
  };
  for (const auto& [name, value] : arguments) builder.AddChannelArgument(name, value);
  // A few compressed kilobytes would become gigabytes before any limit on a message's size applies.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.RegisterCallbackGenericService(dispatcher);
  return builder.BuildAndStart();
}

absl::StatusOr<std::unique_ptr<TlsContext>> LoadTls(TlsOptions options, const Logger* log) {
  if (!options.enabled()) return nullptr;
  options.protocol = TlsProtocol::kHttp2;
  return TlsContext::Load(std::move(options),
                          [log](const std::string& warning) { log->Warning(warning); });
}

}  // namespace

struct GrpcServer::State {
  ServiceContext context;
  std::unique_ptr<TlsContext> tls;
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Transport> transport;
  bool stopped = false;
};

GrpcServer::GrpcServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

GrpcServer::~GrpcServer() { Stop(std::chrono::system_clock::now()); }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              HttpServer* api,
                                                              const GenerationService* generation) {
  auto state = std::make_unique<State>();
  HEDDLE_ASSIGN_OR_RETURN(state->tls, LoadTls(options.tls, api->log()));
  ServiceContext& context = state->context;
  context.generation = generation;
  context.model_id = options.model_id;
  context.version = options.version;
  for (int i = 0; i < options.workers; ++i) {
    context.workers.push_back(std::make_unique<CallWorker>(
        [api](PostTask post) { return api->NewHandler(std::move(post)); }));
  }
  state->dispatcher = std::make_unique<Dispatcher>(
      &context, options.max_calls, [api] { api->CountRefusal(Refusal::kGrpcCalls); });
  state->server = Build(options, state->dispatcher.get());
  if (state->server == nullptr) return absl::InternalError("gRPC's server did not start");
  GuardOptions guard = options.guard;
  guard.limits.max_message_bytes = options.max_message_bytes;
  const TransportOptions transport{.host = options.host,
                                   .port = options.port,
                                   .io_threads = options.workers,
                                   .max_connections = options.max_connections,
                                   .tls = state->tls.get(),
                                   .thread_name = "grpc-io"};
  const auto make_factory = [&guard, api, raw = state.get()](PostTask post) {
    const auto serve = [raw](int fd, uint64_t peer) {
      raw->context.peers.Set(fd, peer);
      grpc::AddInsecureChannelFromFd(raw->server.get(), fd);
    };
    return std::make_unique<GuardedConnections>(guard, api->bodies(), api->resets(), api->log(),
                                                api->NewHandler(std::move(post)), serve);
  };
  auto started = Transport::Start(transport, make_factory, api->log());
  if (!started.ok()) {
    state->server->Shutdown();
    return started.status();
  }
  state->transport = *std::move(started);
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(state)));
}

uint16_t GrpcServer::port() const { return state_->transport->port(); }

absl::StatusOr<bool> GrpcServer::ReloadTlsIfChanged() {
  return state_->tls == nullptr ? absl::StatusOr<bool>(false) : state_->tls->ReloadIfChanged();
}

absl::Status GrpcServer::ReloadTls() {
  return state_->tls == nullptr ? absl::OkStatus() : state_->tls->Reload();
}

void GrpcServer::SetReady(bool ready) {
  state_->context.ready = ready;
  state_->dispatcher->health().SetServing(ready);
}

void GrpcServer::Stop(std::chrono::system_clock::time_point deadline) {
  if (std::exchange(state_->stopped, true)) return;
  SetReady(false);
  state_->dispatcher->health().Stop();
  // Accepts no new connections; the existing ones carry the calls in progress to their ends.
  state_->transport->Drain(Clock::now());
  // The workers run until the last call has ended, because they end the cancelled ones.
  state_->server->Shutdown(deadline);
  for (const std::unique_ptr<CallWorker>& worker : state_->context.workers) worker->Stop();
  // gRPC has written the calls' ends and closed; the connections still pass them on, and end when
  // their clients have all.
  const auto left = std::chrono::ceil<Clock::duration>(deadline - std::chrono::system_clock::now());
  state_->transport->Drain(Clock::now() + std::max<Clock::duration>(left, kFarewell));
  state_->transport->Stop();
}

}  // namespace heddle::server
