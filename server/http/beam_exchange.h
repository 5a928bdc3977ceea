// A completion or chat answered by beam search (server/answer/beam_search.h): one token of each
// beam per step, as requests of one token that go on from the contexts of the beams before. Thread:
// the connection's I/O thread.
#pragma once

#include <memory>
#include <vector>

#include "server/answer/answer.h"
#include "server/answer/beam_search.h"
#include "server/http/answer_writer.h"
#include "server/http/engine_exchange.h"

namespace heddle::server {

class BeamExchange final : public EngineExchange,
                           public std::enable_shared_from_this<BeamExchange> {
 public:
  // As GenerationExchange. REQUIRES: the request has a beam_width and one prompt.
  BeamExchange(ServerContext* context, std::unique_ptr<const ApiRequest> request,
               std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
               Clock::time_point received, scheduler::AdapterUse adapter);

  // Begins the first step. After an error nothing is left at the engine, and nothing was sent.
  // `inbox` is owned by a shared_ptr.
  absl::Status Submit(EventInbox* inbox);

 private:
  void Take(size_t prompt, GenerationEvent event) override;
  void Fail(const absl::Status& status) override;
  void End() override;

  absl::Status SubmitStep();
  void EndStep();
  void Finish();
  void DropContexts();
  scheduler::ContextId ContextOf(size_t beam, bool is_next) const;

  std::unique_ptr<const ApiRequest> request_;
  Answer answer_;
  AnswerWriter sender_;
  BeamSearch search_;
  std::shared_ptr<EventInbox> inbox_;
  // Contexts of the beams: those that a step goes on from, and those that it leaves, take turns.
  uint64_t first_context_ = 0;  // of twice as many as there are beams; 0: there are none
  bool odd_step_ = false;
  std::vector<std::vector<engine::TokenLogprob>> next_;  // [beams] what the step has brought
  size_t open_ = 0;                                      // requests of the step
  int32_t cached_tokens_ = 0;
};

}  // namespace heddle::server
