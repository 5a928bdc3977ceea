#include "server/grpc/api_call.h"

#include <utility>

#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

// Source: the mapping of google.rpc.Code to HTTP, the other way round.
grpc::StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 401:
      return grpc::StatusCode::UNAUTHENTICATED;
    case 403:
      return grpc::StatusCode::PERMISSION_DENIED;
    case 404:
      return grpc::StatusCode::NOT_FOUND;
    case 413:
    case 429:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case 501:
      return grpc::StatusCode::UNIMPLEMENTED;
    case 503:
      return grpc::StatusCode::UNAVAILABLE;
    case 408:
    case 504:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    default:
      return http_status >= 500 ? grpc::StatusCode::INTERNAL : grpc::StatusCode::INVALID_ARGUMENT;
  }
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(status.message().data(), status.message().size())};
}

// The "error" object's message, prefixed with the field at fault.
std::string ErrorMessage(const nlohmann::json& error) {
  std::string message = error.value("message", "the request failed");
  const auto param = error.find("param");
  if (param == error.end() || !param->is_string()) return message;
  return param->get<std::string>() + ": " + message;
}

}  // namespace

grpc::Status ToGrpcStatus(int http_status, std::string_view body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool known = json.is_object() && json.contains("error") && json["error"].is_object();
  return {CodeOf(http_status), known ? ErrorMessage(json["error"]) : std::string(body)};
}

void ApiCall::Start(HttpRequest request) {
  worker_->Post([self = shared_from_this(), request = std::move(request)]() mutable {
    self->Run(std::move(request));
  });
}

void ApiCall::Cancel() {
  worker_->Post([self = shared_from_this()] {
    self->Disconnect(grpc::Status(grpc::StatusCode::CANCELLED, "the client left"));
  });
}

void ApiCall::Run(HttpRequest request) {
  if (sink_ == nullptr) return;  // cancelled before its turn
  received_ = request.received;
  record_.method = "RPC";
  record_.path = request.path;
  record_.request_id = request.request_id;
  worker_->Add(shared_from_this());
  std::shared_ptr<Exchange> exchange = worker_->handler().Handle(std::move(request), this);
  if (sink_ != nullptr) exchange_ = std::move(exchange);
}

void ApiCall::Send(HttpResponse response) {
  record_.status = response.status;
  if (response.status >= 400) {
    End(ToGrpcStatus(response.status, response.body), /*cancelled=*/false);
    return;
  }
  const absl::Status emitted = sink_->Emit(response.body);
  End(emitted.ok() ? grpc::Status::OK : ToGrpcStatus(emitted), /*cancelled=*/false);
}

void ApiCall::StartStream(HttpResponse head, std::string_view) { record_.status = head.status; }

void ApiCall::Write(std::string_view data) {
  constexpr std::string_view kFrameEnd = "\n\n";
  while (!data.empty()) {
    const size_t end = data.find(kFrameEnd);
    TakeFrame(data.substr(0, end));
    data.remove_prefix(end == std::string_view::npos ? data.size() : end + kFrameEnd.size());
  }
}

// "data: JSON", perhaps after "event: NAME"; comments keep a connection alive that gRPC keeps alive
// by itself.
void ApiCall::TakeFrame(std::string_view frame) {
  constexpr std::string_view kData = "data: ";
  const size_t begin = frame.starts_with(kData) ? 0 : frame.find("\ndata: ");
  if (begin == std::string_view::npos) return;
  const std::string_view json = frame.substr(begin == 0 ? kData.size() : begin + 1 + kData.size());
  if (json == "[DONE]") return;
  if (record_.failed_midway) {
    midway_ = ToGrpcStatus(500, json);
    return;
  }
  const absl::Status emitted = sink_->Emit(json);
  if (!emitted.ok()) midway_ = ToGrpcStatus(emitted);
}

void ApiCall::EndStream() { End(midway_, /*cancelled=*/false); }

void ApiCall::Abort() {
  End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"),
      /*cancelled=*/true);
}

void ApiCall::OnTick(Clock::time_point now) {
  if (exchange_ != nullptr) exchange_->OnTick(now);
}

void ApiCall::OnShutdown() {
  Disconnect(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
}

void ApiCall::Disconnect(const grpc::Status& status) {
  if (sink_ == nullptr) return;
  if (exchange_ != nullptr) exchange_->OnDisconnect();
  End(status, /*cancelled=*/true);
}

void ApiCall::End(const grpc::Status& status, bool cancelled) {
  if (sink_ == nullptr) return;
  std::exchange(sink_, nullptr)->Finish(status);
  const auto self = shared_from_this();
  worker_->Remove(self);
  exchange_.reset();
  record_.total_seconds = std::chrono::duration<double>(Clock::now() - received_).count();
  record_.outcome = OutcomeOf(record_, cancelled);
  worker_->handler().OnFinished(record_);
}

}  // namespace heddle::server
