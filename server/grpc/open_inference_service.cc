#include <utility>

#include "proto/inference/open_inference.grpc.pb.h"
#include "server/grpc/call_request.h"
#include "server/grpc/open_inference.h"
#include "server/grpc/reactors.h"
#include "server/grpc/services.h"

namespace heddle::server {
namespace {

using grpc::CallbackServerContext;

class OpenInferenceService final : public inference::GRPCInferenceService::CallbackService {
 public:
  explicit OpenInferenceService(ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* ServerLive(CallbackServerContext* call,
                                       const inference::ServerLiveRequest*,
                                       inference::ServerLiveResponse* response) override {
    response->set_live(context_->generation->Stats().state != EngineState::kFailed);
    return Done(call);
  }

  grpc::ServerUnaryReactor* ServerReady(CallbackServerContext* call,
                                        const inference::ServerReadyRequest*,
                                        inference::ServerReadyResponse* response) override {
    response->set_ready(context_->ready);
    return Done(call);
  }

  grpc::ServerUnaryReactor* ModelReady(CallbackServerContext* call,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) override {
    response->set_ready(context_->ready && request->name() == context_->model_id);
    return Done(call);
  }

  grpc::ServerUnaryReactor* ServerMetadata(CallbackServerContext* call,
                                           const inference::ServerMetadataRequest*,
                                           inference::ServerMetadataResponse* response) override {
    response->set_name("heddle");
    response->set_version(context_->version);
    return Done(call);
  }

  grpc::ServerUnaryReactor* ModelMetadata(CallbackServerContext* call,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override {
    if (request->name() != context_->model_id) {
      return Done(call, {grpc::StatusCode::NOT_FOUND,
                         "no model \"" + request->name() + "\" here, only " + context_->model_id});
    }
    response->set_name(context_->model_id);
    response->set_platform("heddle");
    Describe("text_input", response->add_inputs());
    Describe("text_output", response->add_outputs());
    return Done(call);
  }

  grpc::ServerUnaryReactor* ModelInfer(CallbackServerContext* call,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override {
    auto* reactor = new UnaryReactor<inference::ModelInferResponse>(
        context_->NextWorker(), response,
        [id = request->id()](std::string_view json, inference::ModelInferResponse* out) {
          out->set_id(id);
          return FromCompletionJson(json, out);
        });
    absl::StatusOr<std::string> body = ToCompletionJson(*request);
    if (body.ok()) {
      reactor->Start(ToHttpRequest(*call, "POST", "/v1/completions", *std::move(body)));
    } else {
      reactor->Finish(InvalidArgument(body.status()));
    }
    return reactor;
  }

 private:
  static grpc::ServerUnaryReactor* Done(CallbackServerContext* call,
                                        const grpc::Status& status = {}) {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  static void Describe(const char* name, inference::ModelMetadataResponse::TensorMetadata* tensor) {
    tensor->set_name(name);
    tensor->set_datatype("BYTES");
    tensor->add_shape(-1);
  }

  ServiceContext* context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeOpenInferenceService(ServiceContext* context) {
  return std::make_unique<OpenInferenceService>(context);
}

}  // namespace heddle::server
