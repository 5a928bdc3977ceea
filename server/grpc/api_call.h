// One RPC as a request of the HTTP API: it goes to the same Handler (routes, keys, limits, metrics,
// logs), and the Handler's output, a body or server-sent events, becomes messages and a gRPC
// status.
//
// Begin checks the call's metadata; if they are good, the sink reads its message, and Start, or
// Complete for an answer that needs no request, follows.
// Life: the reactor makes the call and keeps it until gRPC is done with it; the worker keeps it
// until it has ended.
// Threads: Begin, Start, Complete, Cancel and OnTaken may be called from any thread; all else runs
// on the worker's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "server/grpc/call_worker.h"
#include "server/http/reading_pace.h"

namespace heddle::server {

// The receiver of a call's messages; the reactors implement it. Calls come from one thread.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // The call is allowed: reads its message.
  virtual void ReadMessage() = 0;
  // Sends the message given as `json`.
  virtual absl::Status Emit(std::string_view json) = 0;
  // Bytes that the client has not taken yet.
  virtual size_t queued_bytes() const = 0;
  // Follows the emitted messages. The sink is not used after it.
  virtual void Finish(const grpc::Status& status) = 0;
};

class ApiCall final : public ResponseWriter,
                      public PendingCall,
                      public std::enable_shared_from_this<ApiCall> {
 public:
  // `sink` lives until its Finish has been called; `worker` outlives the call.
  ApiCall(CallWorker* worker, MessageSink* sink) : worker_(worker), sink_(sink) {}

  // `head`: the request without its body. With an empty path it needs no key and is not logged.
  void Begin(HttpRequest head);
  void Start(HttpRequest request);
  void Complete(const grpc::Status& status);
  // The message has arrived; the call's message timeout ends.
  void StopWaiting();
  // The client is gone, or its deadline has passed.
  void Cancel();
  // gRPC has taken a message; `queued_bytes` are left in the sink.
  void OnTaken(size_t queued_bytes);

  void Send(HttpResponse response) override;
  void StartStream(HttpResponse head, std::string_view keep_alive) override;
  void Write(std::string_view data) override;
  void EndStream() override;
  size_t buffered_bytes() const override { return sink_ == nullptr ? 0 : sink_->queued_bytes(); }
  bool is_behind() const override { return pace_.is_behind(); }
  bool is_overfull() const override { return buffered_bytes() > kMaxUnsentBytes; }
  void Abort() override;
  RequestRecord& record() override { return record_; }

  void OnTick(Clock::time_point now) override;
  void OnShutdown() override;

 private:
  // gRPC's own flow control holds back what exceeds a call's window.
  static constexpr size_t kMaxUnsentBytes = size_t{1} << 20;

  // The time in which a call's message must arrive: that of a body over HTTP, or of a header if it
  // needs no key.
  static constexpr Clock::duration kMessageTimeout = std::chrono::seconds(30);
  static constexpr Clock::duration kOpenMessageTimeout = std::chrono::seconds(10);

  // The time for which a client may be behind without reading most of what there is: that without
  // a byte over HTTP.
  static constexpr Clock::duration kReadTimeout = std::chrono::seconds(30);

  void CheckHead(const HttpRequest& head);
  void Run(HttpRequest request);
  template <typename Body>
  void PostGuarded(Body body);
  void TakeFrame(std::string_view frame);
  void CountQueued();
  grpc::Status Emit(std::string_view json);
  void Disconnect(const grpc::Status& status);
  void End(const grpc::Status& status, bool cancelled);

  CallWorker* worker_;
  MessageSink* sink_;  // nullptr once finished
  std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;
  Clock::time_point received_;
  bool waits_for_message_ = false;
  ReadingPace pace_;
  std::atomic<bool> is_behind_ = false;  // OnTaken is of interest
  grpc::Status midway_;                  // status of an error frame, which ends the stream
};

// The status for an error answer of the HTTP API, whose body has the message.
grpc::Status ToGrpcStatus(int http_status, std::string_view body);

}  // namespace heddle::server
