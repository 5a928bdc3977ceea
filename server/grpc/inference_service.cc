#include <utility>

#include "proto/heddle/v1/inference.grpc.pb.h"
#include "server/grpc/call_request.h"
#include "server/grpc/json_mapping.h"
#include "server/grpc/reactors.h"
#include "server/grpc/services.h"

namespace heddle::server {
namespace {

using grpc::CallbackServerContext;

v1::GetStatsResponse::State ToState(EngineState state) {
  switch (state) {
    case EngineState::kServing:
      return v1::GetStatsResponse::STATE_SERVING;
    case EngineState::kDraining:
      return v1::GetStatsResponse::STATE_DRAINING;
    case EngineState::kFailed:
      break;
  }
  return v1::GetStatsResponse::STATE_FAILED;
}

class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(ServiceContext* context) : context_(context) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      CallbackServerContext* call, const v1::GenerateRequest* request) override {
    return Stream<v1::GenerateResponse>(*call, "/v1/completions", *request);
  }

  grpc::ServerWriteReactor<v1::ChatResponse>* Chat(CallbackServerContext* call,
                                                   const v1::ChatRequest* request) override {
    return Stream<v1::ChatResponse>(*call, "/v1/chat/completions", *request);
  }

  grpc::ServerUnaryReactor* Embed(CallbackServerContext* call, const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override {
    return Unary(call, "POST", "/v1/embeddings", *request, response);
  }

  grpc::ServerUnaryReactor* Tokenize(CallbackServerContext* call,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return Unary(call, "POST", "/tokenize", *request, response);
  }

  grpc::ServerUnaryReactor* Detokenize(CallbackServerContext* call,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return Unary(call, "POST", "/detokenize", *request, response);
  }

  grpc::ServerUnaryReactor* ListModels(CallbackServerContext* call,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override {
    return Unary(call, "GET", "/v1/models", *request, response);
  }

  grpc::ServerUnaryReactor* GetStats(CallbackServerContext* call, const v1::GetStatsRequest*,
                                     v1::GetStatsResponse* response) override {
    const EngineStats stats = context_->generation->Stats();
    response->set_state(ToState(stats.state));
    response->set_running_sequences(stats.running_sequences);
    response->set_waiting_requests(stats.waiting_requests);
    response->set_queue_limit(stats.queue_limit);
    response->set_pages_total(stats.pages_total);
    response->set_pages_used(stats.pages_used);
    response->set_pages_cached(stats.pages_cached);
    response->set_page_tokens(stats.page_tokens);
    response->set_steps(stats.steps);
    response->set_prompt_tokens(stats.prompt_tokens);
    response->set_cached_tokens(stats.cached_tokens);
    response->set_generated_tokens(stats.generated_tokens);
    response->set_preemptions(stats.preemptions);
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  template <typename Response>
  grpc::ServerWriteReactor<Response>* Stream(const CallbackServerContext& call, const char* path,
                                             const google::protobuf::Message& request) {
    auto* reactor = new StreamReactor<Response>(context_->NextWorker(), &FromResponseJson);
    absl::StatusOr<std::string> body = ToRequestJson(request, JsonForm::kStreaming);
    if (body.ok()) {
      reactor->Start(ToHttpRequest(call, "POST", path, *std::move(body)));
    } else {
      reactor->Finish(InvalidArgument(body.status()));
    }
    return reactor;
  }

  template <typename Response>
  grpc::ServerUnaryReactor* Unary(CallbackServerContext* call, const char* method, const char* path,
                                  const google::protobuf::Message& request, Response* response) {
    auto* reactor = new UnaryReactor<Response>(context_->NextWorker(), response, &FromResponseJson);
    absl::StatusOr<std::string> body = ToRequestJson(request, JsonForm::kPlain);
    if (body.ok()) {
      reactor->Start(ToHttpRequest(*call, method, path, *std::move(body)));
    } else {
      reactor->Finish(InvalidArgument(body.status()));
    }
    return reactor;
  }

  ServiceContext* context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(ServiceContext* context) {
  return std::make_unique<InferenceService>(context);
}

}  // namespace heddle::server
