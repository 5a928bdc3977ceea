// Access to the gRPC front end, and clients that break the rules.
#include <future>
#include <string>

#include "catch2/catch.hpp"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "proto/grpc/reflection/v1alpha/reflection.pb.h"
#include "proto/heddle/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/messages.h"
#include "tests/server/grpc/http2_frames.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;
using server::GrpcServer;
using server::GrpcServerOptions;
using server::HttpServerOptions;
using std::chrono::seconds;

HttpServerOptions WithKeys() {
  HttpServerOptions options;
  options.api_keys = {"secret"};
  options.admin_keys = {"boss"};
  return options;
}

struct ServiceWithKeys {
  explicit ServiceWithKeys(const HttpServerOptions& http_options = {},
                           GrpcServerOptions options = {})
      : http([](const server::GenerationRequest&) { return std::string("hi"); }, http_options) {
    options.model_id = "test-model";
    auto started = GrpcServer::Start(options, http.http.get(), http.generation.get());
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    server = *std::move(started);
    server->SetReady(true);
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()),
                                  grpc::InsecureChannelCredentials());
    stub = v1::Inference::NewStub(channel);
  }

  // Calls any method with one message in and one out.
  grpc::Status Call(const std::string& method, const std::string& request, const std::string& key,
                    std::string* response = nullptr, bool compressed = false) {
    grpc::GenericStub generic(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    if (compressed) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    const grpc::Slice slice(request);
    const grpc::ByteBuffer in(&slice, 1);
    grpc::ByteBuffer out;
    std::promise<grpc::Status> done;
    generic.UnaryCall(&context, method, {}, &in, &out,
                      [&done](const grpc::Status& status) { done.set_value(status); });
    grpc::Status status = done.get_future().get();
    if (status.ok() && response != nullptr) {
      std::vector<grpc::Slice> slices;
      CHECK(out.Dump(&slices).ok());
      response->clear();
      for (const grpc::Slice& part : slices) {
        response->append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
    return status;
  }
  grpc::StatusCode Code(const std::string& method, const std::string& request,
                        const std::string& key) {
    return Call(method, request, key).error_code();
  }

  ServerUnderTest http;
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> stub;
};

TEST_CASE("A call comes from its client's address, as over HTTP", "[grpc]") {
  ServiceWithKeys served;
  v1::GenerateRequest request;
  request.set_prompt("hello");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  const auto reader = served.stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  CHECK(reader->Finish().ok());
  RawClient client(served.http.port());
  CHECK(client.Post("/v1/completions", R"({"prompt": "hello"})").status == 200);
  const uint64_t peer = served.http.generation->WaitForRequest(0).peer;
  CHECK(peer != 0);
  CHECK(peer == served.http.generation->WaitForRequest(1).peer);
}

// The type of the next frame of `stream`, or of GOAWAY; -1: the connection has ended.
int NextFrame(RawClient* client, uint32_t stream) {
  std::string read;
  auto take = [&](size_t bytes) {
    while (read.size() < bytes) {
      const std::string next = client->ReadBytes(bytes - read.size());
      if (next.empty()) return false;
      read += next;
    }
    return true;
  };
  while (take(9)) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(read[i]); };
    const size_t length = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
    const uint32_t number =
        uint32_t{byte(5)} << 24 | uint32_t{byte(6)} << 16 | uint32_t{byte(7)} << 8 | byte(8);
    const int type = byte(3);
    if (!take(9 + length)) return -1;
    if (number == stream || type == kGoAway) return type;
    read.clear();
  }
  return -1;
}

std::string ListServices() {
  ServerReflectionRequest request;
  request.set_list_services("");
  return request.SerializeAsString();
}

const std::string kStats = "/heddle.v1.Inference/GetStats";
const std::string kModels = "/heddle.v1.Inference/ListModels";
const std::string kCheck = "/grpc.health.v1.Health/Check";
const std::string kReflect = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

TEST_CASE("Methods need the keys that HTTP asks for", "[grpc]") {
  ServiceWithKeys served(WithKeys());
  CHECK(served.Code(kModels, "", "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(served.Code(kModels, "", "wrong") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(served.Code(kModels, "", "secret") == grpc::StatusCode::OK);
  CHECK(served.Code(kStats, "", "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(served.Code(kStats, "", "secret") == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(served.Code(kStats, "", "boss") == grpc::StatusCode::OK);
  CHECK(served.Code(kReflect, ListServices(), "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(served.Code(kReflect, ListServices(), "secret") == grpc::StatusCode::OK);
  CHECK(served.Code("/inference.GRPCInferenceService/ModelMetadata", "", "") ==
        grpc::StatusCode::UNAUTHENTICATED);
  for (const std::string method : {"ServerLive", "ServerReady", "ModelReady", "ServerMetadata"}) {
    CHECK(served.Code("/inference.GRPCInferenceService/" + method, "", "") == grpc::StatusCode::OK);
  }
  CHECK(served.Code(kCheck, "", "") == grpc::StatusCode::OK);
  CHECK(served.Code("/heddle.v1.Inference/Nothing", "", "") == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("A call without a key is refused before its message is read", "[grpc]") {
  ServiceWithKeys served(WithKeys());
  RawClient client(served.server->port());
  client.Send(std::string(kHttp2Preface) + Frame(kSettings, 0, 0) +
              Frame(kHeaders, kEndHeaders, 1, CallHeaders("/heddle.v1.Inference/Generate")));
  CHECK(NextFrame(&client, 1) == kHeaders);  // trailers alone; no message was sent
}

TEST_CASE("What is no message of the method is INVALID_ARGUMENT", "[grpc]") {
  ServiceWithKeys served;
  const grpc::Status status = served.Call("/heddle.v1.Inference/Generate", "\xff\xff\xff", "");
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(status.error_message() == "the message is not a valid heddle.v1.GenerateRequest");
  CHECK(served.Code(kReflect, "\xff\xff\xff", "") == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(served.Code(kCheck, "\xff\xff\xff", "") == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("Messages that are too large, or compressed, are refused", "[grpc]") {
  GrpcServerOptions options;
  options.max_message_bytes = 100'000;
  ServiceWithKeys served({}, options);
  v1::TokenizeRequest request;
  request.set_prompt(std::string(200'000, 'x'));
  const std::string method = "/heddle.v1.Inference/Tokenize";
  CHECK(served.Code(method, request.SerializeAsString(), "") ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_prompt(std::string(90'000, 'x'));
  CHECK(served.Code(method, request.SerializeAsString(), "") == grpc::StatusCode::OK);
  CHECK(served.Call(method, request.SerializeAsString(), "", nullptr, /*compressed=*/true)
            .error_code() == grpc::StatusCode::UNIMPLEMENTED);
  CHECK(served.http.http->bodies()->held_bytes() == 0);
}

TEST_CASE("Reflection lists the services and describes what they are made of", "[grpc]") {
  ServiceWithKeys served;
  std::string bytes;
  REQUIRE(served.Call(kReflect, ListServices(), "", &bytes).ok());
  ServerReflectionResponse response;
  REQUIRE(response.ParseFromString(bytes));
  REQUIRE(response.list_services_response().service_size() == 4);
  for (const auto& service : response.list_services_response().service()) {
    ServerReflectionRequest request;
    request.set_file_containing_symbol(service.name());
    REQUIRE(served.Call(kReflect, request.SerializeAsString(), "", &bytes).ok());
    ServerReflectionResponse file;
    REQUIRE(file.ParseFromString(bytes));
    CHECK(file.file_descriptor_response().file_descriptor_proto_size() >= 1);
    CHECK(file.original_request().file_containing_symbol() == service.name());
  }
  ServerReflectionRequest unknown;
  unknown.set_file_containing_symbol("no.such.Thing");
  REQUIRE(served.Call(kReflect, unknown.SerializeAsString(), "", &bytes).ok());
  REQUIRE(response.ParseFromString(bytes));
  CHECK(response.error_response().error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("Health says what is, and when it changes", "[grpc]") {
  using grpc::health::v1::HealthCheckRequest;
  using grpc::health::v1::HealthCheckResponse;
  ServiceWithKeys served;
  auto check = [&served](const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    std::string bytes;
    HealthCheckResponse response;
    const grpc::Status status = served.Call(kCheck, request.SerializeAsString(), "", &bytes);
    if (!status.ok()) return -static_cast<int>(status.error_code());
    CHECK(response.ParseFromString(bytes));
    return static_cast<int>(response.status());
  };
  CHECK(check("") == HealthCheckResponse::SERVING);
  CHECK(check("heddle.v1.Inference") == HealthCheckResponse::SERVING);
  CHECK(check("no.such.Service") == -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  RawClient watcher(served.server->port());
  watcher.Send(std::string(kHttp2Preface) + Frame(kSettings, 0, 0) +
               Frame(kHeaders, kEndHeaders, 1, CallHeaders("/grpc.health.v1.Health/Watch")) +
               Frame(kData, kEndStream, 1, GrpcMessage("")));
  int type = NextFrame(&watcher, 1);
  for (; type == kWindowUpdate; type = NextFrame(&watcher, 1)) {
  }
  CHECK(type == kHeaders);
  CHECK(NextFrame(&watcher, 1) == kData);
  served.server->SetReady(false);
  CHECK(NextFrame(&watcher, 1) == kData);
  CHECK(check("") == HealthCheckResponse::NOT_SERVING);
}

TEST_CASE("Calls beyond the limit are refused", "[grpc]") {
  GrpcServerOptions options;
  options.max_calls = 1;
  ServiceWithKeys served({}, options);
  RawClient watcher(served.server->port());
  watcher.Send(std::string(kHttp2Preface) + Frame(kSettings, 0, 0) +
               Frame(kHeaders, kEndHeaders, 1, CallHeaders("/grpc.health.v1.Health/Watch")) +
               Frame(kData, kEndStream, 1, GrpcMessage("")));
  int type = NextFrame(&watcher, 1);
  while (type != kData && type != -1) type = NextFrame(&watcher, 1);
  REQUIRE(type == kData);
  CHECK(served.Code(kModels, "", "") == grpc::StatusCode::RESOURCE_EXHAUSTED);
  const std::string metrics = served.http.metrics.Render({}, {});
  CHECK(metrics.find("heddle_refused_total{reason=\"grpc_calls\"} 1\n") != std::string::npos);
}

TEST_CASE("A client that takes back call after call is cut off, and others are served", "[grpc]") {
  ServiceWithKeys served;
  RawClient client(served.server->port());
  client.Send(std::string(kHttp2Preface) + Frame(kSettings, 0, 0));
  for (uint32_t stream = 1; stream < 4000; stream += 2) {
    const bool open = client.Send(
        Frame(kHeaders, kEndHeaders, stream, CallHeaders("/heddle.v1.Inference/Generate")) +
        Frame(kRstStream, 0, stream, Number(8, 4)));
    if (!open) break;
  }
  int type = NextFrame(&client, 1);
  while (type != kGoAway && type != -1) type = NextFrame(&client, 1);
  CHECK(served.Code(kModels, "", "") == grpc::StatusCode::OK);
  const std::string metrics = served.http.metrics.Render({}, {});
  CHECK(metrics.find("heddle_refused_total{reason=\"grpc_resets\"} 1\n") != std::string::npos);
}

TEST_CASE("A stream of answers passes the guard whole", "[grpc]") {
  ServiceWithKeys served;
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_prompt(std::string(60'000, 'p'));
  served.http.model.max_context = 1 << 20;
  auto reader = served.stub->Generate(&context, request);
  v1::GenerateResponse chunk;
  std::string text;
  while (reader->Read(&chunk)) {
    for (const auto& choice : chunk.choices()) text += choice.text();
  }
  CHECK(reader->Finish().ok());
  CHECK(text == "hi");
}

}  // namespace
}  // namespace heddle::test
