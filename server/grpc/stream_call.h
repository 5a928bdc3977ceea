// A call of one of our own services whose client sends message after message (health's Watch,
// reflection): one message is written at a time, and the call ends when none is being written. It
// deletes itself.
// Thread-safety: gRPC calls On... one at a time per kind; their shared state is under mutex_.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "server/grpc/api_call.h"
#include "server/grpc/services.h"

namespace heddle::server {

class StreamCall : public grpc::ServerGenericBidiReactor, public MessageSink {
 public:
  void ReadMessage() final { StartRead(&received_); }
  absl::Status Emit(std::string_view) final { return absl::OkStatus(); }
  size_t queued_bytes() const final { return 0; }
  void Finish(const grpc::Status& status) final;

  void OnWriteDone(bool ok) final;
  void OnCancel() final { call_->Cancel(); }
  void OnDone() override { delete this; }

 protected:
  // `head` is what the call is checked by (keys, limits).
  StreamCall(ServiceContext* context, HttpRequest head);
  ~StreamCall() override { --context_->num_calls; }

  // Nothing is being written, and the call continues. REQUIRES: mutex_ is held.
  virtual void OnWritten() = 0;

  bool CanWrite() const { return !writes_ && !broken_ && !end_; }  // REQUIRES: mutex_ is held
  // REQUIRES: mutex_ is held, and CanWrite().
  void Write(const grpc::ByteBuffer& message);  // shares its memory

  ServiceContext* context_;
  std::shared_ptr<ApiCall> call_;
  grpc::ByteBuffer received_;
  std::mutex mutex_;

 private:
  grpc::ByteBuffer message_;         // GUARDED_BY(mutex_), as all below
  bool writes_ = false;              // message_ is being sent by gRPC
  bool broken_ = false;              // the client takes no more
  std::optional<grpc::Status> end_;  // to be sent once nothing is being written
};

}  // namespace heddle::server
