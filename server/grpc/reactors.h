// gRPC's callback reactors as sinks of an ApiCall. Each deletes itself when gRPC is done with it.
//
// Threads: gRPC calls On... on its own threads; Emit and Finish come from the call's worker.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "server/grpc/api_call.h"

namespace heddle::server {

// From an answer of the HTTP API to the RPC's message.
template <typename Response>
using FromJson = std::function<absl::Status(std::string_view json, Response* response)>;

template <typename Response>
class UnaryReactor final : public grpc::ServerUnaryReactor, public MessageSink {
 public:
  // `response` is gRPC's, and lives until Finish.
  UnaryReactor(CallWorker* worker, Response* response, FromJson<Response> from_json)
      : response_(response),
        from_json_(std::move(from_json)),
        call_(std::make_shared<ApiCall>(worker, this)) {}

  void Start(HttpRequest request) { call_->Start(std::move(request)); }

  absl::Status Emit(std::string_view json) override { return from_json_(json, response_); }
  size_t queued_bytes() const override { return 0; }
  void Finish(const grpc::Status& status) override { grpc::ServerUnaryReactor::Finish(status); }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  Response* response_;
  FromJson<Response> from_json_;
  std::shared_ptr<ApiCall> call_;
};

template <typename Response>
class StreamReactor final : public grpc::ServerWriteReactor<Response>, public MessageSink {
 public:
  StreamReactor(CallWorker* worker, FromJson<Response> from_json)
      : from_json_(std::move(from_json)), call_(std::make_shared<ApiCall>(worker, this)) {}

  void Start(HttpRequest request) { call_->Start(std::move(request)); }

  absl::Status Emit(std::string_view json) override {
    Response message;
    if (absl::Status status = from_json_(json, &message); !status.ok()) return status;
    std::lock_guard lock(mutex_);
    if (broken_) return absl::OkStatus();  // the cancellation is on its way
    bytes_ += message.ByteSizeLong();
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
    return absl::OkStatus();
  }

  size_t queued_bytes() const override {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

  void Finish(const grpc::Status& status) override {
    {
      std::lock_guard lock(mutex_);
      if (!queue_.empty()) {
        end_ = status;
        return;
      }
    }
    // Not under the mutex: OnDone may delete this, with it, on another thread at once.
    grpc::ServerWriteReactor<Response>::Finish(status);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!ok) {
      broken_ = true;
      queue_.clear();
      bytes_ = 0;
    }
    if (!queue_.empty()) {
      this->StartWrite(&queue_.front());
    } else if (end_) {
      grpc::ServerWriteReactor<Response>::Finish(*end_);
    }
  }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  FromJson<Response> from_json_;
  std::shared_ptr<ApiCall> call_;
  mutable std::mutex mutex_;
  std::deque<Response> queue_;       // the first is being written
  size_t bytes_ = 0;                 // of the queue
  bool broken_ = false;              // a write has failed: nothing arrives any more
  std::optional<grpc::Status> end_;  // to finish with once the queue is empty
};

}  // namespace heddle::server
