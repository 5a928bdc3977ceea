// The services of proto/ as tables of methods. Most methods turn their message into a request of
// the HTTP API (api_call.h); some are answered from the server's own state.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/support/status.h"
#include "server/generation.h"
#include "server/grpc/call_worker.h"
#include "server/grpc/peer_table.h"

namespace heddle::server {

// A message as a request of the HTTP API, and how its answers become messages.
struct MappedRequest {
  std::string body;
  std::function<absl::Status(std::string_view json, google::protobuf::Message* response)> from_json;
};

struct Method {
  std::string name;  // "/heddle.v1.Inference/Generate"
  // The route of the HTTP API that decides whether a call needs a key; empty: it needs none.
  std::string http_method;
  std::string http_path;
  const google::protobuf::Message* request;  // prototypes; live as long as the program
  const google::protobuf::Message* response;
  bool streams = false;  // the answer is many messages
  bool repeats = false;  // a call has many requests (stream_infer_call.cc)
  // Exactly one is set: `ask` calls the route; the other answers here.
  std::function<absl::StatusOr<MappedRequest>(const google::protobuf::Message& request)> ask;
  std::function<grpc::Status(const google::protobuf::Message& request,
                             google::protobuf::Message* response)>
      answer;
};

// Shared by the services, and outlives them.
struct ServiceContext {
  std::vector<std::unique_ptr<CallWorker>> workers;
  std::atomic<uint32_t> next_worker = 0;
  std::atomic<bool> ready = false;
  std::atomic<int> num_calls = 0;  // calls that gRPC has begun and not ended
  PeerTable peers;
  const GenerationService* generation = nullptr;
  std::string model_id;
  std::string version;

  // Distributes calls over the workers in turn.
  CallWorker* NextWorker() {
    return workers[next_worker.fetch_add(1, std::memory_order_relaxed) % workers.size()].get();
  }
};

// heddle.v1.Inference
std::vector<Method> InferenceMethods(ServiceContext* context);
// inference.GRPCInferenceService: the Open Inference Protocol.
std::vector<Method> OpenInferenceMethods(ServiceContext* context);

// The reactor of a call of `method`, which deletes itself.
grpc::ServerGenericBidiReactor* NewMethodCall(const Method* method, ServiceContext* context,
                                              const grpc::GenericCallbackServerContext& call);

// The same for a method that repeats.
grpc::ServerGenericBidiReactor* NewStreamInferCall(const Method* method, ServiceContext* context,
                                                   const grpc::GenericCallbackServerContext& call);

}  // namespace heddle::server
