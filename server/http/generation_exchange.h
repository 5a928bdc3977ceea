// One generation request on its way: submits to the engine, turns events into bytes, cancels when
// the client goes.
//
// An error before the first event is a real HTTP status: the head of a stream is only sent with its
// first frame. After that it is an error frame, and the stream still ends in order.
// Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <vector>

#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/server_context.h"
#include "server/openai/answer.h"

namespace heddle::server {

class GenerationExchange final : public Exchange,
                                 public EventReceiver,
                                 public std::enable_shared_from_this<GenerationExchange> {
 public:
  // Adds headers that every response has (CORS).
  using Decorate = std::function<void(HttpResponse*)>;

  // `context` and `writer` outlive the exchange's activity (exchange.h).
  // `format` may keep a pointer to `request`, which lives as long.
  GenerationExchange(ServerContext* context, std::unique_ptr<const ApiRequest> request,
                     std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                     Clock::time_point received, Decorate decorate);

  // Hands everything to the engine. On an error nothing is left there, and nothing was sent.
  absl::Status Submit(EventInbox* inbox);

  void OnEvent(size_t prompt, GenerationEvent event) override;
  void OnDisconnect() override;
  void OnTick(Clock::time_point now) override;

 private:
  void Describe();  // for spans
  void Measure(size_t prompt, const GenerationEvent& event);
  void SendFrames(const std::string& frames);
  void Finish();
  void Fail(const absl::Status& status);
  void CancelAll();
  void End();  // nothing is sent or received after it
  HttpResponse Response(int status) const;

  ServerContext* context_;
  std::unique_ptr<const ApiRequest> request_;
  Answer answer_;
  ResponseWriter* writer_;
  Clock::time_point received_;
  Decorate decorate_;
  std::vector<RequestId> ids_;                 // per prompt, as far as submitted
  std::vector<Clock::time_point> last_token_;  // per choice; epoch: none yet
  bool streaming_ = false;
  bool ended_ = false;
};

}  // namespace heddle::server
