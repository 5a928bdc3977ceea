#include "server/http/embedding_exchange.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "server/answer/event_failure.h"
#include "server/http/responses.h"

namespace heddle::server {
namespace {

// Texts of one request that the engine has at a time: enough for a few steps.
constexpr size_t kMaxAtOnce = 128;

}  // namespace

EmbeddingExchange::EmbeddingExchange(ServerContext* context, EmbeddingRequest request,
                                     AnswerIdentity identity, ResponseWriter* writer,
                                     Clock::time_point received, scheduler::AdapterUse adapter)
    : EngineExchange(context, writer, received, std::move(adapter)),
      request_(std::move(request)),
      identity_(std::move(identity)),
      embeddings_(request_.generations.size()),
      open_(request_.generations.size()) {}

absl::Status EmbeddingExchange::Submit(EventInbox* inbox) {
  inbox_ = inbox->shared_from_this();
  const size_t first = std::min(kMaxAtOnce, request_.generations.size());
  while (ids_.size() < first) {
    if (absl::Status status = SubmitNext(); !status.ok()) {
      CancelAll();
      ended_ = true;
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingExchange::SubmitNext() {
  const size_t number = ids_.size();
  return SubmitToEngine(request_.generations[number], inbox_->SinkFor(shared_from_this(), number));
}

void EmbeddingExchange::Take(size_t prompt, GenerationEvent event) {
  RequestRecord& record = writer_->record();
  if (record.queued_seconds < 0 && event.queued_seconds >= 0) {
    record.queued_seconds = record.prepared_seconds + event.queued_seconds;
  }
  record.last_event_seconds = std::chrono::duration<double>(Clock::now() - received_).count();
  if (!event.finished) return;
  if (absl::Status failure = FailureOf(event); !failure.ok()) return Fail(failure);
  if (event.embedding.empty()) {
    return Fail(absl::InternalError("the engine gave no embedding"));
  }
  FinishPooled(request_, &event.embedding);
  embeddings_[prompt] = std::move(event.embedding);
  if (--open_ == 0) {
    Finish();
  } else if (ids_.size() < request_.generations.size()) {
    if (absl::Status status = SubmitNext(); !status.ok()) Fail(status);
  }
}

void EmbeddingExchange::Finish() {
  for (const GenerationRequest& generation : request_.generations) {
    writer_->record().prompt_tokens += static_cast<int64_t>(generation.prompt.size());
  }
  context_->dependencies.metrics->CountTokens(writer_->record().prompt_tokens, 0, 0);
  const EmbeddingStamp stamp{identity_.unique, identity_.created,
                             writer_->record().last_event_seconds};
  HttpResponse response = JsonResponse(request_.write(request_, embeddings_, stamp));
  AddCorsHeaders(context_->options.cors_origin, &response);
  ended_ = true;
  writer_->Send(std::move(response));
}

void EmbeddingExchange::Fail(const absl::Status& status) {
  CancelAll();
  ended_ = true;
  const ApiError error = ToApiError(status);
  writer_->Send(ErrorResponse(error, ErrorBodyFor(writer_->record().path, error),
                              context_->options.cors_origin));
}

}  // namespace heddle::server
