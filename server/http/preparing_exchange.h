// A request on its way from its complete body to its answer: prepared on a thread of the pool, or
// at once where it is small, and then handed to the exchange of its kind.
//
// Small ones are prepared on the I/O thread, and so never wait behind others': what a quick Read
// does with kMaxInlineBytes takes less than a step of any engine (docs/benchmarks/serving.md).
// Threads: Run on the pool's; all else on the connection's I/O thread. Between Start and the result
// of Run the preparation is the pool's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/preparation.h"
#include "server/http/prepare_pool.h"
#include "server/http/server_context.h"

namespace heddle::server {

class PreparingExchange final : public Exchange,
                                public PrepareTask,
                                public std::enable_shared_from_this<PreparingExchange> {
 public:
  // Answers with an error.
  using Fail = std::function<void(const absl::Status&)>;

  // Bytes of a body that is tried on the I/O thread first, and in the pool's short lane.
  static constexpr size_t kMaxInlineBytes = size_t{4} << 10;
  static constexpr size_t kMaxShortBytes = size_t{64} << 10;

  // `server` and `writer` outlive the exchange's activity (exchange.h).
  PreparingExchange(ServerContext* server, std::shared_ptr<EventInbox> inbox,
                    std::unique_ptr<Preparation> preparation, ResponseWriter* writer,
                    Clock::time_point received, Fail fail);

  // May answer before it returns.
  void Start(size_t body_bytes);

  void OnDisconnect() override;
  void OnTick(Clock::time_point now) override;

  Next Run(Lane lane, double waited_seconds) override;

 private:
  absl::Status Read(bool quick);
  void OnRead(const absl::Status& status);
  void End();  // before it was handed over; nothing is sent after it

  ServerContext* server_;
  std::shared_ptr<EventInbox> inbox_;
  std::unique_ptr<Preparation> preparation_;  // null once handed over
  ResponseWriter* writer_;
  Clock::time_point received_;
  Fail fail_;
  double spent_seconds_ = 0;          // in Read
  double waited_seconds_ = -1;        // for threads of the pool; negative: it needed none
  std::atomic<bool> ended_ = false;   // set on the I/O thread; the pool's spare themselves work
  std::shared_ptr<Exchange> answer_;  // once handed over, unless it was answered then
};

}  // namespace heddle::server
