// One generation request in progress: submits to the engine, turns events into bytes, cancels when
// the client leaves.
// An error before the first event is a real HTTP status, because the head of a stream is only sent
// with its first frame. A later error is an error frame, and the stream still ends in order.
// Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer/answer.h"
#include "server/branches/branch_turns.h"
#include "server/http/engine_exchange.h"

namespace heddle::server {

class GenerationExchange final : public EngineExchange,
                                 public std::enable_shared_from_this<GenerationExchange> {
 public:
  // `context` and `writer` outlive the exchange's activity (exchange.h).
  // `format` may keep a pointer to `request`, which lives as long. `turns`: the branches that the
  // choices are; null: they are none.
  GenerationExchange(ServerContext* context, std::unique_ptr<const ApiRequest> request,
                     std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                     Clock::time_point received, scheduler::AdapterUse adapter,
                     std::unique_ptr<BranchTurns> turns = nullptr);

  // Begins a streamed answer with frames that came before it, so that all errors are frames.
  void BeginStream(const std::string& frames) { SendFrames(frames); }

  // Submits everything to the engine. After an error nothing is left there, and nothing was sent.
  absl::Status Submit(EventInbox* inbox);

 private:
  void Take(size_t prompt, GenerationEvent event) override;
  void Fail(const absl::Status& status) override;
  void End() override;
  void Watch() override;

  void Describe();  // for spans
  void TakeDown(size_t prompt, GenerationEvent event, Answer::Output* output);
  void Measure(size_t prompt, const GenerationEvent& event);
  void SendFrames(const std::string& frames);
  void Finish();
  void AddHeaders(HttpResponse* response) const;  // adds the headers of an answer
  void AddWarning(HttpResponse* response) const;

  std::unique_ptr<const ApiRequest> request_;
  Answer answer_;
  std::unique_ptr<BranchTurns> turns_;         // null: no branches
  std::vector<Clock::time_point> last_token_;  // per choice; the epoch means none yet
  bool streaming_ = false;
};

}  // namespace heddle::server
