// A request whose answer comes from the engine, event by event: the common part of generations and
// embeddings. Thread: the connection's I/O thread.
// Any failure ends the request once: by Fail, if its client can still be told.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/answer/answer_format.h"
#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/server_context.h"

namespace heddle::server {

class EngineExchange : public Exchange, public EventReceiver {
 public:
  void OnEvent(size_t prompt, GenerationEvent event) final;
  void OnDisconnect() final;
  void OnCaughtUp() final;
  void OnTick(Clock::time_point now) final;

 protected:
  // `context` and `writer` outlive the exchange's activity (exchange.h).
  EngineExchange(ServerContext* context, ResponseWriter* writer, Clock::time_point received,
                 scheduler::AdapterUse adapter)
      : context_(context), writer_(writer), received_(received), adapter_(std::move(adapter)) {}

  // Submits a generation to the engine under a new id, which is appended to ids_.
  absl::Status SubmitToEngine(GenerationRequest generation, EventSink sink);
  void CancelAll();
  // Notes when an event of one sequence came, for metrics and the record.
  void Measure(size_t sequence, const GenerationEvent& event);
  // Pauses what was submitted, if the client is behind, until it has caught up.
  void PauseIfBehind();

  // Counts the tokens of an answer that has ended, in metrics and the record.
  void CountAnswer(const Usage& usage, std::vector<std::string> finish_reasons);

  // Takes one event of the request at index `prompt` of ids_.
  virtual void Take(size_t prompt, GenerationEvent event) = 0;
  // Cancels the rest, tells the client, and ends.
  virtual void Fail(const absl::Status& status) = 0;
  // Called several times a second: whether there is a reason to end.
  virtual void Watch() {}
  // Nothing is sent or received after it.
  virtual void End() { ended_ = true; }

  ServerContext* context_;
  ResponseWriter* writer_;
  const Clock::time_point received_;
  std::vector<RequestId> ids_;  // ids of the submitted generations, in order
  bool ended_ = false;
  bool paused_ = false;

 private:
  void FailByException(const absl::Status& status);

  const scheduler::AdapterUse adapter_;        // of all generations
  uint64_t call_ = 0;                          // GenerationRequest::call of all of them
  std::vector<Clock::time_point> last_token_;  // [sequences] the epoch means none yet
};

}  // namespace heddle::server
