// A request for the log-probabilities of texts behind a branch in progress: submits one generation
// of no tokens per text, which run in one step where they fit into it, and answers when all have
// ended. Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <vector>

#include "server/branches/branch_requests.h"
#include "server/http/engine_exchange.h"

namespace heddle::server {

class ScoringExchange final : public EngineExchange,
                              public std::enable_shared_from_this<ScoringExchange> {
 public:
  // `context` and `writer` outlive the exchange's activity (exchange.h).
  ScoringExchange(ServerContext* context, BranchScoring scoring, ResponseWriter* writer,
                  Clock::time_point received, scheduler::AdapterUse adapter);

  // After an error nothing is left at the engine, and nothing was sent.
  absl::Status Submit(EventInbox* inbox);

 private:
  void Take(size_t prompt, GenerationEvent event) override;
  void Fail(const absl::Status& status) override;
  void Finish();

  const BranchScoring scoring_;
  std::vector<std::vector<engine::SampledToken>> scores_;  // one per continuation
  size_t open_;
};

}  // namespace heddle::server
