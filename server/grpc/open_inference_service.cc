#include <string>
#include <utility>

#include "base/status.h"
#include "proto/inference/open_inference.pb.h"
#include "server/grpc/open_inference.h"
#include "server/grpc/services.h"

namespace heddle::server {
namespace {

using google::protobuf::Message;

void Describe(const char* name, inference::ModelMetadataResponse::TensorMetadata* tensor) {
  tensor->set_name(name);
  tensor->set_datatype("BYTES");
  tensor->add_shape(-1);
}

grpc::Status DescribeModel(const ServiceContext& context,
                           const inference::ModelMetadataRequest& request,
                           inference::ModelMetadataResponse* response) {
  if (request.name() != context.model_id) {
    return {grpc::StatusCode::NOT_FOUND,
            "no model \"" + request.name() + "\" here, only " + context.model_id};
  }
  response->set_name(context.model_id);
  response->set_platform("heddle");
  Describe("text_input", response->add_inputs());
  Describe("text_output", response->add_outputs());
  return grpc::Status::OK;
}

template <typename Request, typename Response>
Method NewMethod(const char* name) {
  Method method;
  method.name = std::string("/inference.GRPCInferenceService/") + name;
  method.request = &Request::default_instance();
  method.response = &Response::default_instance();
  return method;
}

// Methods for probes need no key, as over HTTP. `fill`: (request, response) -> grpc::Status.
template <typename Request, typename Response, typename Fill>
Method Answer(const char* name, Fill fill) {
  Method method = NewMethod<Request, Response>(name);
  method.answer = [fill](const Message& request, Message* response) {
    return fill(static_cast<const Request&>(request), static_cast<Response*>(response));
  };
  return method;
}

Method ModelInfer() {
  Method method =
      NewMethod<inference::ModelInferRequest, inference::ModelInferResponse>("ModelInfer");
  method.http_method = "POST";
  method.http_path = "/v1/completions";
  method.ask = [](const Message& message) -> absl::StatusOr<MappedRequest> {
    const auto& request = static_cast<const inference::ModelInferRequest&>(message);
    HEDDLE_ASSIGN_OR_RETURN(std::string body, ToCompletionJson(request));
    return MappedRequest{std::move(body), [id = request.id(), is_raw = IsRaw(request)](
                                              std::string_view json, Message* out) {
                           auto* response = static_cast<inference::ModelInferResponse*>(out);
                           response->set_id(id);
                           return FromCompletionJson(json, is_raw, response);
                         }};
  };
  return method;
}

Method ModelStreamInfer() {
  Method method = NewMethod<inference::ModelInferRequest, inference::ModelStreamInferResponse>(
      "ModelStreamInfer");
  method.http_method = "POST";
  method.http_path = "/v1/completions";
  method.streams = true;
  method.repeats = true;
  return method;
}

}  // namespace

std::vector<Method> OpenInferenceMethods(ServiceContext* context) {
  std::vector<Method> methods;
  methods.push_back(Answer<inference::ServerLiveRequest, inference::ServerLiveResponse>(
      "ServerLive", [context](const auto&, auto* response) {
        response->set_live(context->generation->Stats().state != EngineState::kFailed);
        return grpc::Status::OK;
      }));
  methods.push_back(Answer<inference::ServerReadyRequest, inference::ServerReadyResponse>(
      "ServerReady", [context](const auto&, auto* response) {
        response->set_ready(context->ready);
        return grpc::Status::OK;
      }));
  methods.push_back(Answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      "ModelReady", [context](const auto& request, auto* response) {
        response->set_ready(context->ready && request.name() == context->model_id);
        return grpc::Status::OK;
      }));
  methods.push_back(Answer<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
      "ServerMetadata", [context](const auto&, auto* response) {
        response->set_name("heddle");
        response->set_version(context->version);
        return grpc::Status::OK;
      }));
  methods.push_back(Answer<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
      "ModelMetadata", [context](const auto& request, auto* response) {
        return DescribeModel(*context, request, response);
      }));
  methods.back().http_method = "GET";  // the model's name needs a key, as over HTTP
  methods.back().http_path = "/v1/models";
  methods.push_back(ModelInfer());
  methods.push_back(ModelStreamInfer());
  return methods;
}

}  // namespace heddle::server
