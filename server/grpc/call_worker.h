// The thread that gRPC calls are answered on: it owns a Handler (http/exchange.h) and the exchanges
// of its calls, as an I/O thread of the HTTP server does.
//
// Thread-safety: Post may be called from any thread, Stop by the owner. Everything else runs on the
// worker's own thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "server/http/exchange.h"
#include "server/http/transport.h"

namespace heddle::server {

// A call that is not answered yet.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  virtual void OnTick(Clock::time_point now) = 0;
  virtual void OnShutdown() = 0;  // answer now, because the server stops
};

class CallWorker {
 public:
  explicit CallWorker(const HandlerFactory& make_handler);
  ~CallWorker();  // Stop()

  // Runs `task` soon; after Stop it is dropped.
  void Post(std::function<void()> task);

  Handler& handler() { return *handler_; }
  void Add(std::shared_ptr<PendingCall> call);
  void Remove(const std::shared_ptr<PendingCall>& call);

  // Ends the pending calls, then the thread. Idempotent.
  void Stop();

 private:
  void Run();
  void RunCaught(const std::function<void()>& task);
  void Tick();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> tasks_;  // GUARDED_BY(mutex_)
  bool stopping_ = false;                     // GUARDED_BY(mutex_)
  std::unique_ptr<Handler> handler_;
  std::unordered_set<std::shared_ptr<PendingCall>> pending_;
  std::thread thread_;
};

}  // namespace heddle::server
