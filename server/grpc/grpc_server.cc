#include "server/grpc/grpc_server.h"

#include <utility>

#include "base/message.h"
#include "google/protobuf/message.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "server/grpc/services.h"

namespace heddle::server {

struct GrpcServer::State {
  ServiceContext context;
  std::unique_ptr<grpc::Service> inference;
  std::unique_ptr<grpc::Service> open_inference;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  bool stopped = false;
};

namespace {

// How often gRPC looks whether the certificate files have changed.
constexpr unsigned int kCertificateCheckSeconds = 10;

std::shared_ptr<grpc::ServerCredentials> Credentials(const TlsOptions& tls) {
  if (!tls.enabled()) return grpc::InsecureServerCredentials();
  namespace gx = grpc::experimental;
  gx::TlsServerCredentialsOptions options(std::make_shared<gx::FileWatcherCertificateProvider>(
      tls.key_file, tls.cert_file, tls.client_ca_file, kCertificateCheckSeconds));
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca_file.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return gx::TlsServerCredentials(options);
}

std::unique_ptr<grpc::Server> Build(const GrpcServerOptions& options, grpc::Service* inference,
                                    grpc::Service* open_inference, int* port) {
  // Both are process-wide switches that take effect at the next BuildAndStart.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // Reflection describes what is linked in; nothing else of this file's is used.
  google::protobuf::LinkMessageReflection<grpc::health::v1::HealthCheckRequest>();
  grpc::ServerBuilder builder;
  // Without it a second server on the port would share it silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? base::StrCat("[", options.host, "]") : options.host;
  builder.AddListeningPort(base::StrCat(host, ":", options.port), Credentials(options.tls), port);
  builder.RegisterService(inference);
  builder.RegisterService(open_inference);
  return builder.BuildAndStart();
}

}  // namespace

GrpcServer::GrpcServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

GrpcServer::~GrpcServer() { Stop(std::chrono::system_clock::now()); }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              HttpServer* api,
                                                              const GenerationService* generation) {
  auto state = std::make_unique<State>();
  ServiceContext& context = state->context;
  context.generation = generation;
  context.model_id = options.model_id;
  context.version = options.version;
  for (int i = 0; i < options.workers; ++i) {
    context.workers.push_back(std::make_unique<CallWorker>(
        [api](PostTask post) { return api->NewHandler(std::move(post)); }));
  }
  state->inference = MakeInferenceService(&context);
  state->open_inference = MakeOpenInferenceService(&context);
  state->server = Build(options, state->inference.get(), state->open_inference.get(), &state->port);
  if (state->server == nullptr || state->port == 0) {
    state->stopped = state->server == nullptr;
    return absl::UnavailableError(base::StrCat("cannot listen for gRPC on ", options.host, " port ",
                                               options.port,
                                               ": the address is in use or not this machine's"));
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(state)));
}

uint16_t GrpcServer::port() const { return static_cast<uint16_t>(state_->port); }

void GrpcServer::SetReady(bool ready) {
  state_->context.ready = ready;
  state_->server->GetHealthCheckService()->SetServingStatus(ready);
}

void GrpcServer::Stop(std::chrono::system_clock::time_point deadline) {
  if (std::exchange(state_->stopped, true)) return;
  SetReady(false);
  // The workers go on until the last call has ended: they end the cancelled ones.
  state_->server->Shutdown(deadline);
  for (const std::unique_ptr<CallWorker>& worker : state_->context.workers) worker->Stop();
}

}  // namespace heddle::server
