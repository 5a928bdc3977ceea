// The reactor of ModelStreamInfer: a client sends request after request over one call, and gets the
// answers in their order; the next request is read when the one before has been answered. An error
// of a request is a message, and the call goes on.
// Each request is an ApiCall of its own: it is checked (keys, limits), logged and cancelled by
// itself. The first is begun with the call, so that nothing is read of a client without a key.
// Threads: gRPC calls On... on its own threads; the calls of MessageSink come from the worker.
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/status.h"
#include "proto/inference/open_inference.pb.h"
#include "server/grpc/api_call.h"
#include "server/grpc/call_request.h"
#include "server/grpc/messages.h"
#include "server/grpc/open_inference.h"
#include "server/grpc/services.h"

namespace heddle::server {
namespace {

using inference::ModelInferRequest;
using inference::ModelStreamInferResponse;

class StreamInferCall final : public grpc::ServerGenericBidiReactor, public MessageSink {
 public:
  StreamInferCall(const Method* method, ServiceContext* context,
                  const grpc::GenericCallbackServerContext& call)
      : context_(context), head_(ToHttpRequest(call, method->http_method, method->http_path, "")) {
    ++context_->num_calls;
    head_.peer = context->peers.Of(call);
    BeginRequest();
  }
  ~StreamInferCall() override { --context_->num_calls; }

  // The request is allowed: the first has to be read, a later one is here.
  void ReadMessage() override {
    if (has_message_) {
      StartRequest();
    } else {
      StartRead(&buffer_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return OnReadEnd();
    const bool is_first = !std::exchange(has_message_, true);
    is_first ? StartRequest() : BeginRequest();
  }

  absl::Status Emit(std::string_view json) override {
    ModelStreamInferResponse response;
    HEDDLE_ASSIGN_OR_RETURN(
        const bool has_text,
        FromCompletionChunk(json, id_, is_raw_, response.mutable_infer_response()));
    if (has_text) Push(response);
    return absl::OkStatus();
  }

  size_t queued_bytes() const override {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

  // The request was answered, or refused.
  void Finish(const grpc::Status& status) override {
    ModelStreamInferResponse last;
    last.mutable_infer_response()->set_id(id_);
    if (!status.ok()) {
      last.set_error_message(status.error_message());
    } else if (wants_last_) {
      (*last.mutable_infer_response()->mutable_parameters())[kFinalResponse].set_bool_param(true);
    }
    if (has_message_ && (!status.ok() || wants_last_)) Push(last);
    {
      std::lock_guard lock(mutex_);
      call_ = nullptr;
      if (!has_message_ || broken_ || has_left_) {
        end_ = status;
        if (!queue_.empty() && !broken_) return;
      }
    }
    end_.has_value() ? grpc::ServerGenericBidiReactor::Finish(*end_) : StartRead(&buffer_);
  }

  void OnWriteDone(bool ok) override {
    std::optional<grpc::Status> end;
    {
      std::lock_guard lock(mutex_);
      bytes_ -= queue_.front().Length();
      queue_.pop_front();
      if (!ok) {
        broken_ = true;
        queue_.clear();
        bytes_ = 0;
      }
      if (call_ != nullptr) call_->OnTaken(bytes_);
      if (!queue_.empty()) {
        StartWrite(&queue_.front());
        return;
      }
      end = end_;
    }
    if (end) grpc::ServerGenericBidiReactor::Finish(*end);
  }

  void OnCancel() override {
    std::lock_guard lock(mutex_);
    has_left_ = true;
    if (call_ != nullptr) call_->Cancel();
  }
  void OnDone() override { delete this; }

 private:
  static constexpr const char* kFinalResponse = "triton_final_response";

  void BeginRequest() {
    auto call = std::make_shared<ApiCall>(context_->NextWorker(), this);
    {
      std::lock_guard lock(mutex_);
      call_ = call;
    }
    call->Begin(head_);
  }

  // Parses the message that has come, and asks.
  void StartRequest() {
    std::shared_ptr<ApiCall> call;
    {
      std::lock_guard lock(mutex_);
      call = call_;
    }
    if (call == nullptr) return;  // it was ended meanwhile
    absl::Status status;
    try {
      status = TakeMessage();
    } catch (const std::exception&) {
      status = absl::ResourceExhaustedError("the server has no memory left for this call");
    }
    if (!status.ok()) return call->Complete(ToGrpcStatus(status));
    HttpRequest request = head_;
    request.body = std::move(body_);
    request.received = Clock::now();
    call->Start(std::move(request));
  }

  absl::Status TakeMessage() {
    ModelInferRequest request;
    HEDDLE_RETURN_IF_ERROR(ParseMessage(&buffer_, &request));
    id_ = request.id();
    is_raw_ = IsRaw(request);
    wants_last_ = false;
    const auto found = request.parameters().find("triton_enable_empty_final_response");
    if (found != request.parameters().end()) wants_last_ = found->second.bool_param();
    HEDDLE_ASSIGN_OR_RETURN(body_, ToCompletionJson(request, /*may_stream=*/true));
    return absl::OkStatus();
  }

  // The client sends no more. A request in progress is still answered.
  void OnReadEnd() {
    std::shared_ptr<ApiCall> waiting;
    bool ends = false;
    {
      std::lock_guard lock(mutex_);
      if (call_ != nullptr) {
        waiting = call_;  // the first, whose message does not come
      } else {
        end_ = grpc::Status::OK;
        ends = queue_.empty() || broken_;
      }
    }
    if (waiting != nullptr) waiting->Complete(grpc::Status::OK);
    if (ends) grpc::ServerGenericBidiReactor::Finish(grpc::Status::OK);
  }

  void Push(const ModelStreamInferResponse& response) {
    grpc::ByteBuffer message = SerializeMessage(response);
    std::lock_guard lock(mutex_);
    if (broken_) return;  // the cancellation will follow
    bytes_ += message.Length();
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  ServiceContext* context_;
  HttpRequest head_;  // of every request; set before the first
  grpc::ByteBuffer buffer_;
  // State of the request in progress; set before it starts.
  bool has_message_ = false;  // some message has come
  std::string id_;
  bool is_raw_ = false;
  bool wants_last_ = false;  // an empty message at the end of each request
  std::string body_;
  mutable std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  std::shared_ptr<ApiCall> call_;       // null between two requests
  std::deque<grpc::ByteBuffer> queue_;  // the first is being written
  size_t bytes_ = 0;                    // total of the queue
  bool broken_ = false;                 // a write has failed: nothing more arrives
  bool has_left_ = false;               // the call was cancelled
  std::optional<grpc::Status> end_;     // set when the call is to end once the queue is empty
};

}  // namespace

grpc::ServerGenericBidiReactor* NewStreamInferCall(const Method* method, ServiceContext* context,
                                                   const grpc::GenericCallbackServerContext& call) {
  return new StreamInferCall(method, context, call);
}

}  // namespace heddle::server
