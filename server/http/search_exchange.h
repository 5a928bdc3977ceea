// A completion or chat answered by a search over samples (server/answer/sample_search.h): runs its
// waves, each as one request with as many branches, lets a reward model score what has ended if the
// client wants that, and gives the sample that it chooses. Without scores, in time, that is the
// likeliest one, and a warning says so. Thread: the connection's I/O thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/answer/answer.h"
#include "server/answer/sample_search.h"
#include "server/http/answer_writer.h"
#include "server/http/engine_exchange.h"

namespace heddle::server {

class SearchExchange final : public EngineExchange,
                             public std::enable_shared_from_this<SearchExchange> {
 public:
  // As GenerationExchange. REQUIRES: the request has one prompt, and as many branches as the search
  // has samples.
  SearchExchange(ServerContext* context, std::unique_ptr<ApiRequest> request,
                 std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                 Clock::time_point received, scheduler::AdapterUse adapter,
                 std::unique_ptr<SampleSearch> search);

  // Begins the first wave. After an error nothing is left at the engine, and nothing was sent.
  // `inbox` is owned by a shared_ptr.
  absl::Status Submit(EventInbox* inbox);

 private:
  void Take(size_t wave, GenerationEvent event) override;
  void Fail(const absl::Status& status) override;
  void End() override;
  void Watch() override;

  absl::Status SubmitWave();
  void GoOn();
  void AskForRewards();
  void TakeRewards(const std::vector<size_t>& samples,
                   const absl::StatusOr<std::vector<double>>& rewards);
  void Finish();
  void DropContexts();

  std::unique_ptr<ApiRequest> request_;
  Answer answer_;
  AnswerWriter sender_;
  std::unique_ptr<SampleSearch> search_;
  std::shared_ptr<EventInbox> inbox_;
  std::vector<size_t> first_of_;  // [waves] the first sample
  std::vector<bool> is_cut_;      // [samples]
  bool asked_for_rewards_ = false;
  uint64_t first_context_ = 0;  // of as many as there are samples; 0: there are none
};

}  // namespace heddle::server
