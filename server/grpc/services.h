// The services of proto/, on a set of workers. Each method makes a request of the HTTP API of its
// message; see api_call.h.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/impl/service_type.h"
#include "server/generation.h"
#include "server/grpc/call_worker.h"

namespace heddle::server {

// Shared by the services; all of it outlives them.
struct ServiceContext {
  std::vector<std::unique_ptr<CallWorker>> workers;
  std::atomic<uint32_t> next_worker = 0;
  std::atomic<bool> ready = false;
  const GenerationService* generation = nullptr;
  std::string model_id;
  std::string version;

  // Calls go round the workers.
  CallWorker* NextWorker() {
    return workers[next_worker.fetch_add(1, std::memory_order_relaxed) % workers.size()].get();
  }
};

// heddle.v1.Inference
std::unique_ptr<grpc::Service> MakeInferenceService(ServiceContext* context);
// inference.GRPCInferenceService: the Open Inference Protocol.
std::unique_ptr<grpc::Service> MakeOpenInferenceService(ServiceContext* context);

}  // namespace heddle::server
