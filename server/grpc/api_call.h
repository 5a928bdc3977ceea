// One RPC as a request of the HTTP API: it goes to the same Handler (routes, keys, limits, metrics,
// logs), and what that writes, a body or server-sent events, becomes messages and a gRPC status.
//
// Life: the reactor (calls.h) makes the call, and keeps it until gRPC is done with it; the worker
// keeps it while its exchange lives.
// Threads: Start and Cancel from any; all else on the worker's thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "server/grpc/call_worker.h"

namespace heddle::server {

// Where the messages of a call go; implemented by the reactors. Calls come from one thread.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // Sends the message that `json` stands for.
  virtual absl::Status Emit(std::string_view json) = 0;
  // Not yet taken by the client.
  virtual size_t queued_bytes() const = 0;
  // After what was emitted. The sink is not used after it.
  virtual void Finish(const grpc::Status& status) = 0;
};

class ApiCall final : public ResponseWriter,
                      public PendingCall,
                      public std::enable_shared_from_this<ApiCall> {
 public:
  // `sink` lives until its Finish was called; `worker` outlives the call.
  ApiCall(CallWorker* worker, MessageSink* sink) : worker_(worker), sink_(sink) {}

  void Start(HttpRequest request);
  // The client is gone, or its deadline has passed.
  void Cancel();

  void Send(HttpResponse response) override;
  void StartStream(HttpResponse head, std::string_view keep_alive) override;
  void Write(std::string_view data) override;
  void EndStream() override;
  size_t buffered_bytes() const override { return sink_ == nullptr ? 0 : sink_->queued_bytes(); }
  bool is_overfull() const override { return buffered_bytes() > kMaxUnsentBytes; }
  void Abort() override;
  RequestRecord& record() override { return record_; }

  void OnTick(Clock::time_point now) override;
  void OnShutdown() override;

 private:
  // gRPC's own flow control holds back what lies beyond a call's window.
  static constexpr size_t kMaxUnsentBytes = size_t{1} << 20;

  void Run(HttpRequest request);
  void TakeFrame(std::string_view frame);
  void Disconnect(const grpc::Status& status);
  void End(const grpc::Status& status, bool cancelled);

  CallWorker* worker_;
  MessageSink* sink_;  // nullptr once finished
  std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;
  Clock::time_point received_;
  grpc::Status midway_;  // an error frame's, to end the stream with
};

// The status for an error answer of the HTTP API, with the message in its body.
grpc::Status ToGrpcStatus(int http_status, std::string_view body);

}  // namespace heddle::server
