// A request for embeddings in progress: submits one generation per text, and answers when all have
// ended. Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http/engine_exchange.h"
#include "server/http/generation_routes.h"
#include "server/openai/embeddings.h"

namespace heddle::server {

class EmbeddingExchange final : public EngineExchange,
                                public std::enable_shared_from_this<EmbeddingExchange> {
 public:
  // `context` and `writer` outlive the exchange's activity (exchange.h).
  EmbeddingExchange(ServerContext* context, EmbeddingRequest request, AnswerIdentity identity,
                    ResponseWriter* writer, Clock::time_point received,
                    scheduler::AdapterUse adapter);

  // Submits the first texts to the engine; each finished one makes room for the next, so that a
  // long list fits a short queue and others get their turn. After an error nothing is left there,
  // and nothing was sent. `inbox` is owned by a shared_ptr.
  absl::Status Submit(EventInbox* inbox);

 private:
  void Take(size_t prompt, GenerationEvent event) override;
  void Fail(const absl::Status& status) override;

  absl::Status SubmitNext();
  void Finish();

  EmbeddingRequest request_;
  AnswerIdentity identity_;
  std::shared_ptr<EventInbox> inbox_;
  std::vector<std::vector<float>> embeddings_;  // one per text; empty until it is there
  size_t open_;
};

}  // namespace heddle::server
