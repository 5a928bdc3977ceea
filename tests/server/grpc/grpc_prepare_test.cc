// Requests are prepared off the workers of the gRPC front end, as the HTTP server does off its I/O
// threads.
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "grpcpp/grpcpp.h"
#include "proto/heddle/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/http/preparing_exchange.h"
#include "tests/server/gated_codec.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using server::GrpcServer;
using server::GrpcServerOptions;
using server::HttpServerOptions;

// Longer than what is prepared on the worker's own thread.
const std::string kHeld = "HOLD" + std::string(server::PreparingExchange::kMaxInlineBytes, ' ');

HttpServerOptions Bounded() {
  HttpServerOptions options;
  options.prepare_threads = 1;
  options.max_preparing = 1;
  return options;
}

struct GatedService {
  GatedService() {
    http.model.max_context = 1 << 20;
    GrpcServerOptions options;
    options.model_id = "test-model";
    auto started = GrpcServer::Start(options, http.http.get(), http.generation.get());
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    grpc = *std::move(started);
    grpc->SetReady(true);
    stub = v1::Inference::NewStub(grpc::CreateChannel("localhost:" + std::to_string(grpc->port()),
                                                      grpc::InsecureChannelCredentials()));
  }
  ~GatedService() { codec.OpenAll(); }

  grpc::Status Tokenize(const std::string& prompt, int* count = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(15));
    return Tokenize(prompt, &context, count);
  }
  grpc::Status Tokenize(const std::string& prompt, grpc::ClientContext* context, int* count) {
    v1::TokenizeRequest request;
    request.set_prompt(prompt);
    v1::TokenizeResponse response;
    grpc::Status status = stub->Tokenize(context, request, &response);
    if (count != nullptr) *count = response.count();
    return status;
  }

  GatedCodec codec;
  ServerUnderTest http{std::make_unique<FakeGeneration>(), Bounded(), nullptr, &codec};
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<v1::Inference::Stub> stub;
};

TEST_CASE("Calls are answered while another call's text is prepared", "[grpc][prepare]") {
  GatedService served;
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_prompt(kHeld);
  auto reader = served.stub->Generate(&context, request);
  REQUIRE(served.codec.text_gate.WaitForReached(1));
  int count = 0;
  CHECK(served.Tokenize("ab", &count).ok());
  CHECK(count == 3);
  served.codec.OpenAll();
  served.http.generation->WaitForRequest(0);
  served.http.generation->EmitText(0, "hi");
  v1::GenerateResponse chunk;
  REQUIRE(reader->Read(&chunk));
  CHECK(chunk.choices(0).text() == "hi");
  served.http.generation->EmitEnd(0, server::FinishReason::kStop);
  while (reader->Read(&chunk)) continue;
  CHECK(reader->Finish().ok());
}

TEST_CASE("A call that is cancelled while it is prepared never reaches the engine",
          "[grpc][prepare]") {
  GatedService served;
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_prompt(kHeld);
  auto reader = served.stub->Generate(&context, request);
  REQUIRE(served.codec.text_gate.WaitForReached(1));
  context.TryCancel();
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  const auto cancelled = [&served] {
    return RawClient(served.http.port())
               .Get("/metrics")
               .body.find(R"(heddle_generation_requests_total{outcome="cancelled")") !=
           std::string::npos;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!cancelled() && std::chrono::steady_clock::now() < deadline) continue;
  CHECK(cancelled());
  served.codec.OpenAll();
  CHECK(served.Tokenize(kHeld).ok());  // behind it in the same lane
  CHECK(served.http.generation->num_submitted() == 0);
}

TEST_CASE("Calls beyond the bound are RESOURCE_EXHAUSTED", "[grpc][prepare]") {
  GatedService served;
  auto running = std::async(std::launch::async, [&served] { return served.Tokenize(kHeld); });
  REQUIRE(served.codec.text_gate.WaitForReached(1));
  // Two more, for one of which there is room: whichever it is waits, and the other is refused.
  auto one = std::async(std::launch::async, [&served] { return served.Tokenize(kHeld); });
  auto other = std::async(std::launch::async, [&served] { return served.Tokenize(kHeld); });
  const auto refused = [&] {
    for (auto* call : {&one, &other}) {
      if (call->wait_for(std::chrono::milliseconds(10)) == std::future_status::ready) return call;
    }
    return static_cast<std::future<grpc::Status>*>(nullptr);
  };
  std::future<grpc::Status>* first = nullptr;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (first == nullptr && std::chrono::steady_clock::now() < deadline) first = refused();
  REQUIRE(first != nullptr);
  CHECK(first->get().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  served.codec.OpenAll();
  CHECK(running.get().ok());
  CHECK((first == &one ? other : one).get().ok());
}

TEST_CASE("A gRPC server that stops ends calls that are being prepared", "[grpc][prepare]") {
  GatedService served;
  auto running = std::async(std::launch::async, [&served] { return served.Tokenize(kHeld); });
  REQUIRE(served.codec.text_gate.WaitForReached(1));
  served.grpc->Stop(std::chrono::system_clock::now());
  CHECK_FALSE(running.get().ok());
  served.codec.OpenAll();
}

}  // namespace
}  // namespace heddle::test
