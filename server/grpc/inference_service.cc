#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "proto/heddle/v1/inference.pb.h"
#include "server/grpc/json_mapping.h"
#include "server/grpc/services.h"
#include "server/json_writer.h"
#include "server/metrics/engine_figures.h"

namespace heddle::server {
namespace {

v1::GetStatsResponse::State ToState(EngineState state) {
  switch (state) {
    case EngineState::kServing:
      return v1::GetStatsResponse::STATE_SERVING;
    case EngineState::kRecovering:
      return v1::GetStatsResponse::STATE_RECOVERING;
    case EngineState::kDraining:
      return v1::GetStatsResponse::STATE_DRAINING;
    case EngineState::kFailed:
      break;
  }
  return v1::GetStatsResponse::STATE_FAILED;
}

void FillStats(const EngineStats& stats, v1::GetStatsResponse* response) {
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
  for (const EngineFigure& figure : EngineFigures()) {
    (*response->mutable_figures())[std::string(figure.name)] = figure.value(stats);
  }
}

template <typename Request, typename Response>
Method Ask(const char* name, const char* http_method, const char* path, JsonForm form) {
  Method method;
  method.name = std::string("/heddle.v1.Inference/") + name;
  method.http_method = http_method;
  method.http_path = path;
  method.request = &Request::default_instance();
  method.response = &Response::default_instance();
  method.streams = form == JsonForm::kStreaming;
  method.ask = [form](const google::protobuf::Message& request) -> absl::StatusOr<MappedRequest> {
    HEDDLE_ASSIGN_OR_RETURN(std::string body, ToRequestJson(request, form));
    return MappedRequest{std::move(body), &FromResponseJson};
  };
  return method;
}

// The route answers with a sentence.
template <typename Request>
Method LoraUpdate(const char* name, const char* path) {
  Method method = Ask<Request, v1::LoraUpdateResponse>(name, "POST", path, JsonForm::kPlain);
  method.ask = [](const google::protobuf::Message& request) -> absl::StatusOr<MappedRequest> {
    HEDDLE_ASSIGN_OR_RETURN(std::string body, ToRequestJson(request, JsonForm::kPlain));
    return MappedRequest{
        std::move(body), [](std::string_view text, google::protobuf::Message* response) {
          static_cast<v1::LoraUpdateResponse*>(response)->set_message(std::string(text));
          return absl::OkStatus();
        }};
  };
  return method;
}

// The route's lists stand for themselves; a message needs a name for them.
Method ListScales() {
  Method method = Ask<v1::ListLoraScalesRequest, v1::ListLoraScalesResponse>(
      "ListLoraScales", "GET", "/lora-adapters", JsonForm::kPlain);
  method.ask = [](const google::protobuf::Message&) -> absl::StatusOr<MappedRequest> {
    return MappedRequest{"", [](std::string_view json, google::protobuf::Message* response) {
                           return FromResponseJson(base::StrCat("{\"adapters\":", json, "}"),
                                                   response);
                         }};
  };
  return method;
}

Method SetScales() {
  Method method = Ask<v1::SetLoraScalesRequest, v1::SetLoraScalesResponse>(
      "SetLoraScales", "POST", "/lora-adapters", JsonForm::kPlain);
  method.ask = [](const google::protobuf::Message& request) -> absl::StatusOr<MappedRequest> {
    std::string body;
    JsonWriter json(&body);
    json.BeginArray();
    for (const auto& adapter : static_cast<const v1::SetLoraScalesRequest&>(request).adapters()) {
      json.BeginObject().Key("id").Int(adapter.id());
      json.Key("scale").Number(adapter.scale()).EndObject();
    }
    json.EndArray();
    return MappedRequest{std::move(body), &FromResponseJson};
  };
  return method;
}

}  // namespace

std::vector<Method> InferenceMethods(ServiceContext* context) {
  constexpr JsonForm kStream = JsonForm::kStreaming;
  constexpr JsonForm kPlain = JsonForm::kPlain;
  std::vector<Method> methods = {
      Ask<v1::GenerateRequest, v1::GenerateResponse>("Generate", "POST", "/v1/completions",
                                                     kStream),
      Ask<v1::ChatRequest, v1::ChatResponse>("Chat", "POST", "/v1/chat/completions", kStream),
      Ask<v1::EmbedRequest, v1::EmbedResponse>("Embed", "POST", "/v1/embeddings", kPlain),
      Ask<v1::TokenizeRequest, v1::TokenizeResponse>("Tokenize", "POST", "/tokenize", kPlain),
      Ask<v1::DetokenizeRequest, v1::DetokenizeResponse>("Detokenize", "POST", "/detokenize",
                                                         kPlain),
      Ask<v1::ListModelsRequest, v1::ListModelsResponse>("ListModels", "GET", "/v1/models", kPlain),
  };
  methods.push_back(
      LoraUpdate<v1::LoadLoraAdapterRequest>("LoadLoraAdapter", "/v1/load_lora_adapter"));
  methods.push_back(
      LoraUpdate<v1::UnloadLoraAdapterRequest>("UnloadLoraAdapter", "/v1/unload_lora_adapter"));
  methods.push_back(ListScales());
  methods.push_back(SetScales());
  Method stats;
  stats.name = "/heddle.v1.Inference/GetStats";
  stats.http_method = "GET";
  stats.http_path = "/debug/stats";
  stats.request = &v1::GetStatsRequest::default_instance();
  stats.response = &v1::GetStatsResponse::default_instance();
  stats.answer = [context](const auto&, google::protobuf::Message* response) {
    FillStats(context->generation->Stats(), static_cast<v1::GetStatsResponse*>(response));
    return grpc::Status::OK;
  };
  methods.push_back(std::move(stats));
  return methods;
}

}  // namespace heddle::server
