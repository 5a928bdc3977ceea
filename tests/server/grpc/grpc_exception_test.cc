// Exceptions in a call's path are that call's INTERNAL, and lack of memory its UNAVAILABLE.
#include <chrono>
#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "grpcpp/grpcpp.h"
#include "proto/heddle/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/http/preparing_exchange.h"
#include "tests/server/server_under_test.h"
#include "tests/server/throwing_codec.h"

namespace heddle::test {
namespace {

struct ThrowingService {
  ThrowingService() {
    server::GrpcServerOptions options;
    options.model_id = "test-model";
    auto started = server::GrpcServer::Start(options, http.http.get(), http.generation.get());
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    grpc = *std::move(started);
    grpc->SetReady(true);
    stub = v1::Inference::NewStub(grpc::CreateChannel("localhost:" + std::to_string(grpc->port()),
                                                      grpc::InsecureChannelCredentials()));
  }

  grpc::Status Tokenize(const std::string& prompt) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(15));
    v1::TokenizeRequest request;
    request.set_prompt(prompt);
    v1::TokenizeResponse response;
    return stub->Tokenize(&context, request, &response);
  }
  grpc::Status Generate(const std::string& prompt) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(15));
    v1::GenerateRequest request;
    request.set_prompt(prompt);
    auto reader = stub->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) continue;
    return reader->Finish();
  }

  ThrowingCodec codec;
  ServerUnderTest http{
      std::make_unique<FakeGeneration>([](const server::GenerationRequest&) { return "a!"; }),
      {},
      nullptr,
      &codec};
  std::unique_ptr<server::GrpcServer> grpc;
  std::unique_ptr<v1::Inference::Stub> stub;
};

TEST_CASE("An exception is its call's INTERNAL, and others go on", "[grpc]") {
  ThrowingService served;
  const std::string more(server::PreparingExchange::kMaxInlineBytes, 'x');
  for (const std::string& prompt : {std::string("THROW"), "THROW" + more}) {
    const grpc::Status status = served.Tokenize(prompt);
    CHECK(status.error_code() == grpc::StatusCode::INTERNAL);
    CHECK(status.error_message().find("secret") == std::string::npos);
  }
  CHECK(served.Tokenize("MEMORY").error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(served.Generate("fine").error_code() == grpc::StatusCode::INTERNAL);  // in its answer
  CHECK(served.Tokenize("fine").ok());
}

}  // namespace
}  // namespace heddle::test
