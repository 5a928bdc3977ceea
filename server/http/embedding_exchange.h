// A request for embeddings on its way: submits one generation per text, and answers when all have
// come. Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http/event_inbox.h"
#include "server/http/exchange.h"
#include "server/http/generation_routes.h"
#include "server/http/server_context.h"
#include "server/openai/embeddings.h"

namespace heddle::server {

class EmbeddingExchange final : public Exchange,
                                public EventReceiver,
                                public std::enable_shared_from_this<EmbeddingExchange> {
 public:
  using Decorate = std::function<void(HttpResponse*)>;

  // `context` and `writer` outlive the exchange's activity (exchange.h).
  EmbeddingExchange(ServerContext* context, EmbeddingRequest request, AnswerIdentity identity,
                    ResponseWriter* writer, Clock::time_point received, Decorate decorate);

  // Hands the first texts to the engine; each that is done makes room for the next, so that a long
  // list fits a short queue and others get their turn. On an error nothing is left there, and
  // nothing was sent. `inbox` is owned by a shared_ptr.
  absl::Status Submit(EventInbox* inbox);

  void OnEvent(size_t prompt, GenerationEvent event) override;
  void OnDisconnect() override;
  void OnTick(Clock::time_point now) override;

 private:
  absl::Status SubmitNext();
  void Finish();
  void Fail(const absl::Status& status);
  void CancelAll();

  ServerContext* context_;
  EmbeddingRequest request_;
  AnswerIdentity identity_;
  ResponseWriter* writer_;
  Clock::time_point received_;
  Decorate decorate_;
  std::shared_ptr<EventInbox> inbox_;
  std::vector<RequestId> ids_;                  // of the texts that were handed over, in order
  std::vector<std::vector<float>> embeddings_;  // per text; empty until it has come
  size_t open_;
  bool ended_ = false;
};

}  // namespace heddle::server
