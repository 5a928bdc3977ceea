// Clients that read the events of a response in the background: from its beginning, or again from
// where they were. Private to server/http/.
// Thread: the connection's I/O thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/response_log.h"

namespace heddle::server {

class FollowingExchange final : public Exchange,
                                public std::enable_shared_from_this<FollowingExchange> {
 public:
  // Sends the events from number `from` on. The pointers outlive the exchange's activity.
  FollowingExchange(std::shared_ptr<ResponseLog> log, int64_t from, ResponseWriter* writer,
                    EventInbox* inbox)
      : log_(std::move(log)), next_(from), writer_(writer), inbox_(inbox) {}

  // May answer whole before it returns.
  void Begin(const std::string& cors_origin);

  void OnDisconnect() override { End(); }
  void OnDrained() override { Send(); }
  void OnTick(Clock::time_point) override {}

 private:
  void Send();
  void End();

  const std::shared_ptr<ResponseLog> log_;
  int64_t next_;
  ResponseWriter* const writer_;
  EventInbox* const inbox_;
  uint64_t follower_ = 0;
  std::shared_ptr<std::atomic<bool>> is_woken_ = std::make_shared<std::atomic<bool>>(false);
  bool ended_ = false;
};

}  // namespace heddle::server
