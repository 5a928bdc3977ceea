#include "server/grpc/stream_call.h"

#include <utility>

namespace heddle::server {

StreamCall::StreamCall(ServiceContext* context, HttpRequest head)
    : context_(context), call_(std::make_shared<ApiCall>(context->NextWorker(), this)) {
  ++context_->num_calls;
  call_->Begin(std::move(head));
}

void StreamCall::Write(const grpc::ByteBuffer& message) {
  message_ = message;
  writes_ = true;
  StartWrite(&message_);
}

void StreamCall::OnWriteDone(bool ok) {
  std::optional<grpc::Status> end;
  {
    std::lock_guard lock(mutex_);
    writes_ = false;
    broken_ = broken_ || !ok;
    end = end_;
    if (!end && !broken_) OnWritten();
  }
  if (end) grpc::ServerGenericBidiReactor::Finish(*end);
}

void StreamCall::Finish(const grpc::Status& status) {
  {
    std::lock_guard lock(mutex_);
    end_ = status;
    if (writes_) return;
  }
  grpc::ServerGenericBidiReactor::Finish(status);
}

}  // namespace heddle::server
