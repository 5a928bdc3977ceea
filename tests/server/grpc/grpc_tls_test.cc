// gRPC over TLS and mutual TLS, with grpc++'s own client.
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "grpcpp/grpcpp.h"
#include "proto/heddle/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "tests/server/server_under_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pki.h"

namespace heddle::test {
namespace {

using server::GrpcServer;
using server::GrpcServerOptions;
using server::TlsOptions;

struct TlsService {
  explicit TlsService(bool wants_client) {
    GrpcServerOptions options;
    options.tls = {Put("cert.pem", server.CertPem()), Put("key.pem", server.KeyPem()),
                   wants_client ? Put("clients.pem", clients.CertPem()) : ""};
    options.model_id = "test-model";
    auto started = GrpcServer::Start(options, http.http.get(), http.generation.get());
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    grpc = *std::move(started);
    grpc->SetReady(true);
  }

  std::string Put(std::string_view name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }

  // The name of the first model, or "" where the call fails.
  std::string FirstModel(const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    auto channel = grpc::CreateChannel("localhost:" + std::to_string(grpc->port()), credentials);
    auto stub = v1::Inference::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::ListModelsResponse response;
    const grpc::Status status = stub->ListModels(&context, {}, &response);
    return status.ok() && response.data_size() > 0 ? response.data(0).id() : "";
  }

  std::string FirstModel(const Certified& trusted, const Certified* identity) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = trusted.CertPem();
    if (identity != nullptr) {
      options.pem_cert_chain = identity->CertPem();
      options.pem_private_key = identity->KeyPem();
    }
    return FirstModel(grpc::SslCredentials(options));
  }

  TempDir folder;
  Certified authority = MakeAuthority("Servers");
  Certified clients = MakeAuthority("Clients");
  Certified server{{}, &authority};
  ServerUnderTest http{[](const server::GenerationRequest&) { return std::string("hi"); }};
  std::unique_ptr<GrpcServer> grpc;
};

TEST_CASE("gRPC over TLS answers who trusts its authority, and nobody without TLS", "[grpc][tls]") {
  const TlsService served(/*wants_client=*/false);
  CHECK(served.FirstModel(served.authority, nullptr) == "test-model");
  CHECK(served.FirstModel(MakeAuthority("Another"), nullptr).empty());
  CHECK(served.FirstModel(grpc::InsecureChannelCredentials()).empty());
}

TEST_CASE("gRPC over mutual TLS answers only who shows a certificate of the clients' authority",
          "[grpc][tls]") {
  const TlsService served(/*wants_client=*/true);
  const Certified member({.name = "member"}, &served.clients);
  const Certified stranger({.name = "stranger"}, &served.authority);
  CHECK(served.FirstModel(served.authority, nullptr).empty());
  CHECK(served.FirstModel(served.authority, &stranger).empty());
  CHECK(served.FirstModel(served.authority, &member) == "test-model");
}

}  // namespace
}  // namespace heddle::test
