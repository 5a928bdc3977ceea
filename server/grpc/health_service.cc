#include "server/grpc/health_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "server/grpc/call_request.h"
#include "server/grpc/messages.h"
#include "server/grpc/stream_call.h"

namespace heddle::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// A call of Watch: takes one message, and sends the status whenever it changes.
class WatchCall final : public StreamCall {
 public:
  WatchCall(HealthService* health, ServiceContext* context, HttpRequest head)
      : StreamCall(context, std::move(head)), health_(health) {}

  const std::string& service() const { return service_; }

  void OnReadDone(bool ok) override {
    HealthCheckRequest request;
    if (!ok || !ParseMessage(&received_, &request).ok()) {
      call_->Complete({grpc::StatusCode::INVALID_ARGUMENT, "not a HealthCheckRequest"});
      return;
    }
    service_ = request.service();
    call_->StopWaiting();
    health_->Add(this);
  }

  // Skips statuses that follow each other faster than the client reads.
  void Tell(HealthCheckResponse::ServingStatus status) {
    std::lock_guard lock(mutex_);
    latest_ = status;
    OnWritten();
  }

  void Refuse() {
    call_->Complete({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls watch the server"});
  }
  void End() { call_->Complete({grpc::StatusCode::UNAVAILABLE, "the server is shutting down"}); }

  void OnDone() override {
    health_->Remove(this);
    StreamCall::OnDone();
  }

 private:
  void OnWritten() override {
    if (!CanWrite() || latest_ == written_) return;
    written_ = latest_;
    HealthCheckResponse response;
    response.set_status(*written_);
    Write(SerializeMessage(response));
  }

  HealthService* health_;
  std::string service_;                                        // set before health_ knows the call
  std::optional<HealthCheckResponse::ServingStatus> latest_;   // GUARDED_BY(mutex_)
  std::optional<HealthCheckResponse::ServingStatus> written_;  // GUARDED_BY(mutex_)
};

void HealthService::SetServing(bool serving) {
  std::lock_guard lock(mutex_);
  serving_ = serving;
  for (WatchCall* watcher : watchers_) watcher->Tell(StatusLocked(watcher->service()));
}

void HealthService::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (WatchCall* watcher : watchers_) watcher->End();
}

HealthService::Status HealthService::StatusLocked(const std::string& service) const {
  if (!service.empty() && !services_.contains(service)) return HealthCheckResponse::SERVICE_UNKNOWN;
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Add(WatchCall* call) {
  std::lock_guard lock(mutex_);
  if (watchers_.size() >= kMaxWatchers) {
    call->Refuse();
    return;
  }
  watchers_.insert(call);
  stopped_ ? call->End() : call->Tell(StatusLocked(call->service()));
}

void HealthService::Remove(WatchCall* call) {
  std::lock_guard lock(mutex_);
  watchers_.erase(call);
}

Method HealthService::CheckMethod() {
  Method method;
  method.name = "/grpc.health.v1.Health/Check";
  method.request = &HealthCheckRequest::default_instance();
  method.response = &HealthCheckResponse::default_instance();
  method.answer = [this](const google::protobuf::Message& message,
                         google::protobuf::Message* response) -> grpc::Status {
    const std::string& service = static_cast<const HealthCheckRequest&>(message).service();
    std::lock_guard lock(mutex_);
    const Status status = StatusLocked(service);
    if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
      return {grpc::StatusCode::NOT_FOUND, "there is no such service here"};
    }
    static_cast<HealthCheckResponse*>(response)->set_status(status);
    return grpc::Status::OK;
  };
  return method;
}

grpc::ServerGenericBidiReactor* HealthService::NewWatchCall(
    ServiceContext* context, const grpc::GenericCallbackServerContext& call) {
  return new WatchCall(this, context, ToHttpRequest(call, "", "", ""));
}

}  // namespace heddle::server
