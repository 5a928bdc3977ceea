#include "server/http/scoring_exchange.h"

#include <iterator>
#include <utility>

#include "server/answer/event_failure.h"
#include "server/http/responses.h"

namespace heddle::server {

ScoringExchange::ScoringExchange(ServerContext* context, BranchScoring scoring,
                                 ResponseWriter* writer, Clock::time_point received,
                                 scheduler::AdapterUse adapter)
    : EngineExchange(context, writer, received, std::move(adapter)),
      scoring_(std::move(scoring)),
      scores_(scoring_.generations.size()),
      open_(scoring_.generations.size()) {}

absl::Status ScoringExchange::Submit(EventInbox* inbox) {
  for (size_t i = 0; i < scoring_.generations.size(); ++i) {
    absl::Status status =
        SubmitToEngine(scoring_.generations[i], inbox->SinkFor(shared_from_this(), i));
    if (!status.ok()) {
      CancelAll();
      ended_ = true;
      return status;
    }
  }
  return absl::OkStatus();
}

void ScoringExchange::Take(size_t prompt, GenerationEvent event) {
  RequestRecord& record = writer_->record();
  if (record.queued_seconds < 0 && event.queued_seconds >= 0) {
    record.queued_seconds = record.prepared_seconds + event.queued_seconds;
  }
  std::vector<engine::SampledToken>& scores = scores_[prompt];
  scores.insert(scores.end(), std::make_move_iterator(event.prompt_scores.begin()),
                std::make_move_iterator(event.prompt_scores.end()));
  if (!event.finished) return;
  if (absl::Status failure = FailureOf(event); !failure.ok()) return Fail(failure);
  if (--open_ == 0) Finish();
}

void ScoringExchange::Finish() {
  writer_->record().prompt_tokens = scoring_.num_tokens + scoring_.scored_tokens;
  context_->dependencies.metrics->CountTokens(writer_->record().prompt_tokens, scoring_.num_tokens,
                                              0);
  HttpResponse response = JsonResponse(ScoringBody(scoring_, scores_));
  AddCorsHeaders(context_->options.cors_origin, &response);
  ended_ = true;
  writer_->Send(std::move(response));
}

void ScoringExchange::Fail(const absl::Status& status) {
  CancelAll();
  ended_ = true;
  const ApiError error = ToApiError(status);
  writer_->Send(ErrorResponse(error, ErrorJson(error), context_->options.cors_origin));
}

}  // namespace heddle::server
