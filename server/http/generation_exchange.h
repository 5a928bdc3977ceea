// One generation request in progress: submits to the engine, turns events into bytes, cancels when
// the client leaves.
// Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer/answer.h"
#include "server/branches/branch_turns.h"
#include "server/http/answer_writer.h"
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
  void SendFrames(const std::string& frames);
  void Finish();

  std::unique_ptr<const ApiRequest> request_;
  Answer answer_;
  AnswerWriter sender_;
  std::unique_ptr<BranchTurns> turns_;  // null: no branches
};

}  // namespace heddle::server
