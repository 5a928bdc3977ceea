#include "server/grpc/api_call.h"

#include <utility>

#include "nlohmann/json.hpp"
#include "server/grpc/call_request.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

// Source: the mapping of google.rpc.Code to HTTP, inverted.
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

// The "error" object's message, prefixed with the field at fault.
std::string ErrorMessage(const Json& error) {
  const std::string message = TextOr(error, "message", "the request failed");
  const std::string* param = TextOf(Find(error, "param"));
  return param == nullptr ? message : *param + ": " + message;
}

}  // namespace

grpc::Status ToGrpcStatus(int http_status, std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Json* error = Find(json, "error");
  return {CodeOf(http_status), error != nullptr ? ErrorMessage(*error) : std::string(body)};
}

// Runs `body` on the worker; an exception (out of memory) ends only this call.
template <typename Body>
void ApiCall::PostGuarded(Body body) {
  worker_->Post([self = shared_from_this(), body = std::move(body)]() mutable {
    if (self->sink_ == nullptr) return;  // ended before its turn
    try {
      body(self.get());
    } catch (...) {
      const absl::Status failed =
          self->worker_->handler().OnException("call", self->record_.request_id);
      self->record_.status = 500;
      self->Disconnect(ToGrpcStatus(failed));
    }
  });
}

void ApiCall::Begin(HttpRequest head) {
  PostGuarded([head = std::move(head)](ApiCall* self) { self->CheckHead(head); });
}

void ApiCall::Start(HttpRequest request) {
  PostGuarded(
      [request = std::move(request)](ApiCall* self) mutable { self->Run(std::move(request)); });
}

void ApiCall::Complete(const grpc::Status& status) {
  PostGuarded([status](ApiCall* self) {
    self->record_.status = status.ok() ? 200 : 400;
    self->End(status, /*cancelled=*/false);
  });
}

void ApiCall::StopWaiting() {
  PostGuarded([](ApiCall* self) { self->waits_for_message_ = false; });
}

void ApiCall::Cancel() {
  PostGuarded([](ApiCall* self) {
    self->Disconnect(grpc::Status(grpc::StatusCode::CANCELLED, "the client left"));
  });
}

void ApiCall::CheckHead(const HttpRequest& head) {
  received_ = head.received;
  record_.method = "RPC";
  record_.path = head.path;
  record_.request_id = head.request_id;
  worker_->Add(shared_from_this());
  if (!head.path.empty()) {
    if (auto refusal = worker_->handler().CheckHead(head, &record_)) {
      record_.status = refusal->status;
      End(ToGrpcStatus(refusal->status, refusal->body), /*cancelled=*/false);
      return;
    }
  }
  waits_for_message_ = true;
  sink_->ReadMessage();
}

void ApiCall::Run(HttpRequest request) {
  waits_for_message_ = false;
  received_ = request.received;
  std::shared_ptr<Exchange> exchange = worker_->handler().Handle(std::move(request), this);
  if (sink_ != nullptr) exchange_ = std::move(exchange);
}

void ApiCall::Send(HttpResponse response) {
  record_.status = response.status;
  if (response.status >= 400) {
    End(ToGrpcStatus(response.status, response.body), /*cancelled=*/false);
    return;
  }
  End(Emit(response.body), /*cancelled=*/false);
}

grpc::Status ApiCall::Emit(std::string_view json) {
  absl::Status emitted;
  try {
    emitted = sink_->Emit(json);
  } catch (...) {
    emitted = worker_->handler().OnException("message", record_.request_id);
  }
  return emitted.ok() ? grpc::Status::OK : ToGrpcStatus(emitted);
}

void ApiCall::StartStream(HttpResponse head, std::string_view) { record_.status = head.status; }

void ApiCall::Write(std::string_view data) {
  constexpr std::string_view kFrameEnd = "\n\n";
  while (!data.empty()) {
    const size_t end = data.find(kFrameEnd);
    TakeFrame(data.substr(0, end));
    data.remove_prefix(end == std::string_view::npos ? data.size() : end + kFrameEnd.size());
  }
  CountQueued();
}

// Counts twice when the client falls behind: what gRPC took before the flag was up was not told.
void ApiCall::CountQueued() {
  pace_.Count(buffered_bytes(), Clock::now());
  if (pace_.is_behind() == is_behind_) return;
  is_behind_ = pace_.is_behind();
  pace_.Count(buffered_bytes(), Clock::now());
  is_behind_ = pace_.is_behind();
}

void ApiCall::OnTaken(size_t queued_bytes) {
  if (!is_behind_ || !ReadingPace::IsLittle(queued_bytes)) return;
  PostGuarded([](ApiCall* self) {
    self->CountQueued();
    if (!self->is_behind_ && self->exchange_ != nullptr) self->exchange_->OnCaughtUp();
  });
}

// Takes "data: JSON", perhaps after "event: NAME". Comments keep HTTP connections alive; gRPC does
// that itself.
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
  if (grpc::Status emitted = Emit(json); !emitted.ok()) midway_ = std::move(emitted);
}

void ApiCall::EndStream() { End(midway_, /*cancelled=*/false); }

void ApiCall::Abort() {
  End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"),
      /*cancelled=*/true);
}

void ApiCall::OnTick(Clock::time_point now) {
  if (exchange_ != nullptr) exchange_->OnTick(now);
  if (sink_ != nullptr && pace_.is_behind() && now - pace_.since() >= kReadTimeout) {
    Disconnect(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the client does not read"));
  }
  const Clock::duration limit = record_.path.empty() ? kOpenMessageTimeout : kMessageTimeout;
  if (sink_ == nullptr || !waits_for_message_ || now - received_ < limit) return;
  worker_->handler().OnRefused(Refusal::kSlowBody);
  record_.status = 408;
  End(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the message took too long to arrive"),
      /*cancelled=*/false);
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
  if (!record_.path.empty()) worker_->handler().OnFinished(record_);
}

}  // namespace heddle::server
