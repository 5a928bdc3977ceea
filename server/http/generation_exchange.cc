#include "server/http/generation_exchange.h"

#include <utility>

#include "server/batch/file_store.h"
#include "server/http/responses.h"

namespace heddle::server {
GenerationExchange::GenerationExchange(ServerContext* context,
                                       std::unique_ptr<const ApiRequest> request,
                                       std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                                       Clock::time_point received, scheduler::AdapterUse adapter,
                                       std::unique_ptr<BranchTurns> turns)
    : EngineExchange(context, writer, received, std::move(adapter)),
      request_(std::move(request)),
      answer_(request_.get(), context->dependencies.codec, std::move(format)),
      turns_(std::move(turns)),
      last_token_(request_->num_branches()) {}

absl::Status GenerationExchange::Submit(EventInbox* inbox) {
  Describe();
  for (size_t i = 0; i < request_->generations.size(); ++i) {
    absl::Status status =
        SubmitToEngine(request_->generations[i], inbox->SinkFor(shared_from_this(), i));
    if (!status.ok()) {
      CancelAll();
      if (turns_ != nullptr) turns_->Abort();
      ended_ = true;
      return status;
    }
  }
  if (turns_ != nullptr) turns_->Submitted(ids_.front());
  return absl::OkStatus();
}

void GenerationExchange::Describe() {
  const GenerationRequest& first = request_->generations.front();
  writer_->record().asked = {first.max_tokens, first.sampling.temperature, first.sampling.top_p,
                             static_cast<int32_t>(request_->generations.size()) * request_->n};
}

void GenerationExchange::Take(size_t prompt, GenerationEvent event) {
  if (overflowed()) {
    Fail(absl::InternalError("the server could not keep up with this request's tokens"));
    return;
  }
  Measure(prompt, event);
  const RequestRecord& record = writer_->record();
  answer_.format().SetTimes(
      {record.queued_seconds, record.first_token_seconds, record.last_event_seconds});
  Answer::Output output;
  if (turns_ == nullptr) {
    answer_.Take(prompt, std::move(event), &output);
  } else {
    TakeDown(prompt, std::move(event), &output);
  }
  for (int32_t branch : output.stopped_branches) {
    context_->dependencies.generation->CancelBranch(ids_[prompt], branch);
  }
  if (!answer_.error().ok()) {
    const absl::Status gone = turns_ == nullptr ? absl::OkStatus() : turns_->CheckLive(UnixNow());
    Fail(gone.ok() ? answer_.error() : gone);
    return;
  }
  if (!output.frames.empty()) SendFrames(output.frames);
  if (!ended_ && answer_.done()) Finish();
}

// Takes an event of branches: those of its tokens that belong to the answer are the branch's, too.
void GenerationExchange::TakeDown(size_t prompt, GenerationEvent event, Answer::Output* output) {
  const auto index = static_cast<size_t>(event.branch);
  const bool finished = event.finished;
  const bool length = event.reason == FinishReason::kLength;
  std::vector<engine::SampledToken> tokens = event.tokens;
  const int64_t before = answer_.usage().completion_tokens;
  answer_.Take(prompt, std::move(event), output);
  tokens.resize(static_cast<size_t>(answer_.usage().completion_tokens - before));
  turns_->Take(index, tokens);
  if (!answer_.error().ok()) return;
  if (!output->stopped_branches.empty()) {
    turns_->End(index, /*length=*/false);
  } else if (finished) {
    turns_->End(index, length);
  }
}

void GenerationExchange::Watch() {
  if (turns_ == nullptr) return;
  if (const absl::Status gone = turns_->CheckLive(UnixNow()); !gone.ok()) Fail(gone);
}

void GenerationExchange::Measure(size_t prompt, const GenerationEvent& event) {
  ServerMetrics* metrics = context_->dependencies.metrics;
  RequestRecord& record = writer_->record();
  if (event.queued_seconds >= 0) {
    metrics->ObserveQueueTime(event.queued_seconds);
    if (record.queued_seconds < 0) {
      record.queued_seconds = record.prepared_seconds + event.queued_seconds;
    }
  }
  Clock::time_point now = Clock::now();
  record.last_event_seconds = SecondsBetween(received_, now);
  if (event.tokens.empty()) return;
  if (record.first_token_seconds < 0) {
    record.first_token_seconds = record.last_event_seconds;
    metrics->ObserveFirstToken(record.first_token_seconds);
  }
  size_t index =
      prompt * static_cast<size_t>(request_->best_of) + static_cast<size_t>(event.branch);
  Clock::time_point& last = last_token_[index];
  if (last != Clock::time_point()) {
    auto count = static_cast<int64_t>(event.tokens.size());
    metrics->ObserveInterToken(SecondsBetween(last, now) / static_cast<double>(count), count);
  }
  last = now;
}

void GenerationExchange::SendFrames(const std::string& frames) {
  if (!streaming_) {
    streaming_ = true;
    context_->dependencies.metrics->StreamBegan();
    HttpResponse head = TextResponse(answer_.format().content_type(), "");
    AddHeaders(&head);
    writer_->StartStream(std::move(head), answer_.format().keep_alive());
  }
  writer_->Write(frames);
  if (!writer_->is_overfull()) return PauseIfBehind();
  context_->dependencies.log->Warning(
      "a client reads too slowly; its request is cancelled",
      {{"request_id", writer_->record().request_id},
       {"buffered_bytes", static_cast<int64_t>(writer_->buffered_bytes())}});
  CancelAll();
  End();
  writer_->Abort();
}

void GenerationExchange::Finish() {
  if (streaming_) {
    End();
    writer_->EndStream();
    return;
  }
  HttpResponse response = JsonResponse(answer_.Body());
  AddHeaders(&response);
  End();
  writer_->Send(std::move(response));
}

void GenerationExchange::Fail(const absl::Status& status) {
  CancelAll();
  End();
  ApiError error = ToApiError(status);
  if (!streaming_) {
    HttpResponse response =
        ErrorResponse(error, answer_.format().ErrorBody(error), context_->options.cors_origin);
    AddWarning(&response);
    writer_->Send(std::move(response));
    return;
  }
  writer_->record().failed_midway = true;
  writer_->Write(answer_.format().ErrorFrames(error));
  writer_->EndStream();
}

void GenerationExchange::End() {
  EngineExchange::End();
  turns_.reset();
  if (streaming_) context_->dependencies.metrics->StreamEnded();
  const Usage& usage = answer_.usage();
  RequestRecord& record = writer_->record();
  record.prompt_tokens = usage.prompt_tokens;
  record.generated_tokens = usage.completion_tokens;
  record.cached_tokens = usage.cached_tokens;
  record.finish_reasons = answer_.finish_reasons();
  context_->dependencies.metrics->CountTokens(usage.prompt_tokens, usage.cached_tokens,
                                              usage.completion_tokens);
}

void GenerationExchange::AddHeaders(HttpResponse* response) const {
  AddWarning(response);
  AddCorsHeaders(context_->options.cors_origin, response);
}

void GenerationExchange::AddWarning(HttpResponse* response) const {
  if (!request_->warning.empty()) {
    response->headers.emplace_back("X-Heddle-Warning", request_->warning);
  }
}

}  // namespace heddle::server
