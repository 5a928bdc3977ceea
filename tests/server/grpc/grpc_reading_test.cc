// gRPC streams whose clients do not read.
#include <chrono>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "grpcpp/grpcpp.h"
#include "proto/heddle/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

TEST_CASE("A gRPC stream that is not read is paused, and goes on where it stopped", "[grpc]") {
  ServerUnderTest http;
  server::GrpcServerOptions options;
  options.model_id = "test-model";
  auto started = server::GrpcServer::Start(options, http.http.get(), http.generation.get());
  REQUIRE(started.ok());
  (*started)->SetReady(true);
  // The library would take megabytes in advance, as much as the connection seems to carry.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string((*started)->port()),
                                grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::GenerateRequest request;
  request.set_prompt("x");
  request.set_max_tokens(100'000);
  const auto reader = stub->Generate(&context, request);
  http.generation->WaitForRequest(0);
  const std::string piece(200, 'a');
  size_t sent = 0;
  while (!http.generation->IsPaused(0)) {
    http.generation->EmitText(0, piece);
    sent += piece.size();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(sent < 2'000'000);
  }
  // The stream goes on once most has been read. Nothing is written before it does, so that what
  // reads must not be what waits for that.
  size_t got = 0;
  std::thread reading([&] {
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      for (const auto& choice : response.choices()) got += choice.text().size();
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (http.generation->IsPaused(0) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_FALSE(http.generation->IsPaused(0));
  http.generation->EmitEnd(0, server::FinishReason::kLength);
  reading.join();
  CHECK(reader->Finish().ok());
  CHECK(got == sent);
}

}  // namespace
}  // namespace heddle::test
