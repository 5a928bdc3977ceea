// The reactor of a method with one message as its request. The message is read only after the
// call's metadata have been accepted, so that a client without key costs hardly any memory.
// Threads: gRPC calls On... on its own threads; the calls of MessageSink come from the call's
// worker.
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/status.h"
#include "server/grpc/api_call.h"
#include "server/grpc/call_request.h"
#include "server/grpc/messages.h"
#include "server/grpc/services.h"

namespace heddle::server {
namespace {

class MethodCall final : public grpc::ServerGenericBidiReactor, public MessageSink {
 public:
  MethodCall(const Method* method, ServiceContext* context,
             const grpc::GenericCallbackServerContext& call)
      : method_(method),
        context_(context),
        head_(ToHttpRequest(call, method->http_method, method->http_path, "")),
        call_(std::make_shared<ApiCall>(context->NextWorker(), this)) {
    ++context_->num_calls;
    head_.peer = context->peers.Of(call);
    call_->Begin(head_);
  }
  ~MethodCall() override { --context_->num_calls; }

  void ReadMessage() override { StartRead(&buffer_); }

  void OnReadDone(bool ok) override {
    const grpc::Status status =
        ok ? Guarded([this] { return TakeMessage(); })
           : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the call has no message");
    if (!status.ok() || method_->answer) call_->Complete(status);
  }

  absl::Status Emit(std::string_view json) override {
    const std::unique_ptr<google::protobuf::Message> message(method_->response->New());
    HEDDLE_RETURN_IF_ERROR(from_json_(json, message.get()));
    Push(SerializeMessage(*message));
    return absl::OkStatus();
  }

  size_t queued_bytes() const override {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

  void Finish(const grpc::Status& status) override {
    {
      std::lock_guard lock(mutex_);
      if (method_->streams && !queue_.empty()) {
        end_ = status;
        return;
      }
    }
    // Outside of the mutex, because OnDone may delete this, with the mutex, on another thread at
    // once.
    if (!method_->streams && status.ok() && !queue_.empty()) {
      StartWriteAndFinish(&queue_.front(), {}, status);
    } else {
      grpc::ServerGenericBidiReactor::Finish(status);
    }
  }

  void OnWriteDone(bool ok) override {
    std::optional<grpc::Status> end;
    {
      std::lock_guard lock(mutex_);
      if (!method_->streams) return;
      bytes_ -= queue_.front().Length();
      queue_.pop_front();
      if (!ok) {
        broken_ = true;
        queue_.clear();
        bytes_ = 0;
      }
      call_->OnTaken(bytes_);
      if (!queue_.empty()) {
        StartWrite(&queue_.front());
        return;
      }
      end = end_;
    }
    if (end) grpc::ServerGenericBidiReactor::Finish(*end);
  }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  // Exceptions of libraries (out of memory) end only this call.
  template <typename Body>
  static grpc::Status Guarded(const Body& body) {
    try {
      return body();
    } catch (const std::exception&) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the server has no memory left for this call"};
    }
  }

  grpc::Status TakeMessage() {
    const std::unique_ptr<google::protobuf::Message> request(method_->request->New());
    if (absl::Status parsed = ParseMessage(&buffer_, request.get()); !parsed.ok()) {
      return ToGrpcStatus(parsed);
    }
    if (method_->answer) {
      const std::unique_ptr<google::protobuf::Message> response(method_->response->New());
      grpc::Status status = method_->answer(*request, response.get());
      if (status.ok()) Push(SerializeMessage(*response));
      return status;
    }
    absl::StatusOr<MappedRequest> asked = method_->ask(*request);
    if (!asked.ok()) return ToGrpcStatus(asked.status());
    from_json_ = std::move(asked->from_json);
    head_.body = std::move(asked->body);
    head_.received = Clock::now();
    call_->Start(std::move(head_));
    return grpc::Status::OK;
  }

  void Push(grpc::ByteBuffer message) {
    std::lock_guard lock(mutex_);
    if (broken_) return;  // the cancellation will follow
    bytes_ += message.Length();
    queue_.push_back(std::move(message));
    if (method_->streams && queue_.size() == 1) StartWrite(&queue_.front());
  }

  const Method* method_;
  ServiceContext* context_;
  HttpRequest head_;  // until the message has arrived
  std::shared_ptr<ApiCall> call_;
  grpc::ByteBuffer buffer_;
  decltype(MappedRequest::from_json) from_json_;  // set before call_ starts
  mutable std::mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_;  // of a stream; the first is being written
  size_t bytes_ = 0;                    // total of the queue
  bool broken_ = false;                 // a write has failed: nothing more arrives
  std::optional<grpc::Status> end_;     // set when the call is to end once the queue is empty
};

}  // namespace

grpc::ServerGenericBidiReactor* NewMethodCall(const Method* method, ServiceContext* context,
                                              const grpc::GenericCallbackServerContext& call) {
  if (method->repeats) return NewStreamInferCall(method, context, call);
  return new MethodCall(method, context, call);
}

}  // namespace heddle::server
