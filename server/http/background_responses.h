// Responses that are computed without their clients (/v1/responses with `background`), on a thread
// of their own, and the logs of their events. Nothing outlives the process.
//
// Bounds: kMaxRunning at a time, and kMaxBytes of events. Beyond these, responses that have ended
// lose their events, the oldest first; then those that run lose their oldest ones, and cannot be
// read from the beginning any more.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/answer/answer_format.h"
#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/generation_routes.h"
#include "server/http/response_log.h"

namespace heddle::server {

struct ServerContext;
class BackgroundCall;

class BackgroundResponses {
 public:
  static constexpr size_t kMaxRunning = 256;
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  struct Start {
    Generation generation;
    scheduler::AdapterUse adapter;
    RequestRecord record;  // of the request that asked for it: accounts and names
    Clock::time_point received;
    uint64_t tenant = 0;
  };
  using Started = std::function<void(absl::StatusOr<std::shared_ptr<ResponseLog>>)>;

  // `server` outlives it.
  explicit BackgroundResponses(ServerContext* server);
  ~BackgroundResponses();  // Stop()

  // Submits the response to the engine, and calls `on_started` on the thread of the responses.
  void Begin(Start start, Started on_started);

  // nullptr if there is none of that owner, or its events were forgotten.
  std::shared_ptr<ResponseLog> Find(std::string_view id, uint64_t tenant) const;
  // Ends a response that runs; returns whether it did.
  bool Cancel(const std::shared_ptr<ResponseLog>& log);
  // Forgets the events, and ends the response.
  void Erase(const std::shared_ptr<ResponseLog>& log);

  // Waits for those that run. Returns whether all have ended in time.
  bool Drain(Clock::time_point deadline);
  // Ends all. Idempotent.
  void Stop();

 private:
  friend class BackgroundCall;
  using Order = std::list<std::shared_ptr<ResponseLog>>;  // the oldest first

  void Loop();
  void Tick();
  void Run(Start start, const Started& on_started);
  void OnDone(const std::shared_ptr<BackgroundCall>& call);
  void OnCancelled(const std::string& id);
  void AddLog(const std::shared_ptr<ResponseLog>& log);
  void CountBytes(ResponseLog* log, size_t bytes);
  void DropLocked(Order::iterator it);

  ServerContext* server_;
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<Handler> handler_;
  std::shared_ptr<EventInbox> inbox_;
  std::vector<std::shared_ptr<BackgroundCall>> calls_;  // of the thread

  mutable std::mutex mutex_;
  std::condition_variable none_running_;
  // All of the following are GUARDED_BY(mutex_).
  size_t num_running_ = 0;
  size_t bytes_ = 0;
  Order order_;
  std::unordered_map<std::string, Order::iterator> by_id_;

  std::thread thread_;
};

}  // namespace heddle::server
