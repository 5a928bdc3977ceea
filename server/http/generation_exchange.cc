#include "server/http/generation_exchange.h"

#include <utility>

#include "server/batch/file_store.h"

namespace heddle::server {

GenerationExchange::GenerationExchange(ServerContext* context,
                                       std::unique_ptr<const ApiRequest> request,
                                       std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                                       Clock::time_point received, scheduler::AdapterUse adapter,
                                       std::unique_ptr<BranchTurns> turns)
    : EngineExchange(context, writer, received, std::move(adapter)),
      request_(std::move(request)),
      answer_(request_.get(), context->dependencies.codec, std::move(format)),
      sender_(context, writer, request_.get(), &answer_.format()),
      turns_(std::move(turns)) {}

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
  Measure(prompt * static_cast<size_t>(request_->best_of) + static_cast<size_t>(event.branch),
          event);
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

void GenerationExchange::SendFrames(const std::string& frames) {
  if (sender_.Send(frames)) return PauseIfBehind();
  CancelAll();
  End();
  writer_->Abort();
}

void GenerationExchange::Finish() {
  if (sender_.streaming()) {
    End();
    sender_.EndStream();
    return;
  }
  std::string body = answer_.Body();
  End();
  sender_.SendWhole(std::move(body));
}

void GenerationExchange::Fail(const absl::Status& status) {
  CancelAll();
  End();
  sender_.SendError(status);
}

void GenerationExchange::End() {
  EngineExchange::End();
  turns_.reset();
  sender_.Count();
  CountAnswer(answer_.usage(), answer_.finish_reasons());
}

}  // namespace heddle::server
