#include "server/http/embedding_exchange.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace heddle::server {
namespace {

// Texts of one request that the engine has at a time: a few steps' worth.
constexpr size_t kMaxAtOnce = 128;

}  // namespace

EmbeddingExchange::EmbeddingExchange(ServerContext* context, EmbeddingRequest request,
                                     AnswerIdentity identity, ResponseWriter* writer,
                                     Clock::time_point received, Decorate decorate)
    : context_(context),
      request_(std::move(request)),
      identity_(std::move(identity)),
      writer_(writer),
      received_(received),
      decorate_(std::move(decorate)),
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
  GenerationService* service = context_->dependencies.generation;
  const size_t number = ids_.size();
  GenerationRequest generation = request_.generations[number];
  generation.id = service->NextId();
  generation.label = writer_->record().request_id;
  const RequestId id = generation.id;
  HEDDLE_RETURN_IF_ERROR(
      service->Submit(std::move(generation), inbox_->SinkFor(shared_from_this(), number)));
  ids_.push_back(id);
  return absl::OkStatus();
}

void EmbeddingExchange::OnEvent(size_t prompt, GenerationEvent event) {
  if (ended_) return;
  RequestRecord& record = writer_->record();
  if (record.queued_seconds < 0 && event.queued_seconds >= 0) {
    record.queued_seconds = record.prepared_seconds + event.queued_seconds;
  }
  record.last_event_seconds = std::chrono::duration<double>(Clock::now() - received_).count();
  if (!event.finished) return;
  if (event.reason == FinishReason::kError) {
    Fail(event.error.ok() ? absl::InternalError("the engine failed") : event.error);
    return;
  }
  if (event.reason == FinishReason::kCancelled || event.embedding.empty()) {
    Fail(absl::UnavailableError("the server ended this request before it was finished"));
    return;
  }
  embeddings_[prompt] = std::move(event.embedding);
  if (--open_ == 0) {
    Finish();
  } else if (ids_.size() < request_.generations.size()) {
    if (absl::Status status = SubmitNext(); !status.ok()) Fail(status);
  }
}

void EmbeddingExchange::OnDisconnect() {
  if (ended_) return;
  CancelAll();
  ended_ = true;
}

void EmbeddingExchange::OnTick(Clock::time_point now) {
  const Clock::duration limit = context_->options.request_timeout;
  if (!ended_ && IsOverdue(now - received_, limit)) Fail(OverdueError(limit));
}

void EmbeddingExchange::Finish() {
  ended_ = true;
  for (const GenerationRequest& generation : request_.generations) {
    writer_->record().prompt_tokens += static_cast<int64_t>(generation.prompt.size());
  }
  context_->dependencies.metrics->CountTokens(writer_->record().prompt_tokens, 0, 0);
  HttpResponse response;
  response.body = EmbeddingBody(request_, *context_->dependencies.model, std::move(embeddings_),
                                identity_.unique, identity_.created);
  decorate_(&response);
  writer_->Send(std::move(response));
}

void EmbeddingExchange::Fail(const absl::Status& status) {
  CancelAll();
  ended_ = true;
  ApiError error = ToApiError(status);
  HttpResponse response;
  response.status = error.http_status;
  response.body = ErrorJson(error);
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  decorate_(&response);
  writer_->Send(std::move(response));
}

void EmbeddingExchange::CancelAll() {
  for (RequestId id : ids_) context_->dependencies.generation->Cancel(id);
}

}  // namespace heddle::server
