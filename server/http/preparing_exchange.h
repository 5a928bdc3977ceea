// A request between its complete body and its answer: prepared on a thread of the pool, or at once
// if it is small, and then handed to the exchange of its kind. Work for a client that has left, or
// has waited longer than a request may, ends at its next check (Patience).
//
// Small ones are prepared on the I/O thread, and so never wait behind others: a short Read of
// kMaxInlineBytes takes less than a step of any engine (docs/benchmarks/serving.md).
// Threads: Run is called on the pool's, all else on the connection's I/O thread. Between Start and
// the result of Run the preparation belongs to the pool.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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

  // Size of a body that is first tried on the I/O thread, and then in the pool's short lane.
  static constexpr size_t kMaxInlineBytes = size_t{4} << 10;
  static constexpr size_t kMaxShortBytes = size_t{64} << 10;

  // The longest wait for an adapter that is not in memory.
  static constexpr Clock::duration kMaxAdapterWait = std::chrono::seconds(30);

  // `server` and `writer` outlive the exchange's activity (exchange.h).
  PreparingExchange(ServerContext* server, std::shared_ptr<EventInbox> inbox,
                    std::unique_ptr<Preparation> preparation, ResponseWriter* writer,
                    uint64_t client, Clock::time_point received, Fail fail);

  // May answer before it returns.
  void Start(size_t body_bytes);

  void OnDisconnect() override;
  void OnCaughtUp() override;
  void OnDrained() override;
  void OnTick(Clock::time_point now) override;

  Next Run(const PrepareTurn& turn) override;
  uint64_t client() const override { return client_; }
  void Lose() noexcept override { lost_ = true; }

 private:
  absl::Status Read(const Patience& patience);
  absl::Status Ask(const PrepareTurn& turn) const;
  void OnRead(const absl::Status& status);
  void WaitForAdapters(const ModelChoice& model);
  void OnAdapter(const absl::StatusOr<AdapterLease>& lease);
  void BeginAnswer(const absl::Status& status, scheduler::AdapterUse adapter);
  void End();  // before it is handed over; nothing is sent after it

  ServerContext* server_;
  std::shared_ptr<EventInbox> inbox_;
  std::unique_ptr<Preparation> preparation_;  // null once handed over
  ResponseWriter* writer_;
  const uint64_t client_;
  const std::string request_id_;
  Clock::time_point received_;
  Fail fail_;
  double spent_seconds_ = 0;              // time in Read
  double waited_seconds_ = -1;            // for threads of the pool; negative: it needed none
  Clock::time_point adapter_wait_since_;  // if it waits
  bool waits_for_adapter_ = false;
  uint64_t adapter_wait_ = 0;         // AdapterSets' number of the wait
  std::atomic<bool> ended_ = false;   // set on the I/O thread; lets the pool's threads skip work
  std::atomic<bool> lost_ = false;    // out of memory on the pool's side: no result will come
  std::shared_ptr<Exchange> answer_;  // set once handed over, unless it was answered then
};

}  // namespace heddle::server
