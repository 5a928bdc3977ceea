#include "server/http/beam_exchange.h"

#include <algorithm>
#include <utility>

#include "server/answer/event_failure.h"

namespace heddle::server {
namespace {

BeamSearch::Options OptionsOf(const ApiRequest& request) {
  const GenerationRequest& generation = request.generations.front();
  return {.width = request.beam_width,
          .length_penalty = request.length_penalty,
          .min_tokens = generation.sampling.min_tokens,
          .max_tokens = std::max(1, generation.max_tokens),
          .stop_tokens = generation.stop_tokens};
}

}  // namespace

BeamExchange::BeamExchange(ServerContext* context, std::unique_ptr<const ApiRequest> request,
                           std::unique_ptr<AnswerFormat> format, ResponseWriter* writer,
                           Clock::time_point received, scheduler::AdapterUse adapter)
    : EngineExchange(context, writer, received, std::move(adapter)),
      request_(std::move(request)),
      answer_(request_.get(), context->dependencies.codec, std::move(format)),
      sender_(context, writer, request_.get(), &answer_.format()),
      search_(OptionsOf(*request_)) {
  if (context->branches == nullptr) return;
  first_context_ = context->branches->ReserveContexts(2 * request_->beam_width);
}

absl::Status BeamExchange::Submit(EventInbox* inbox) {
  inbox_ = inbox->shared_from_this();
  writer_->record().asked = {request_->generations.front().max_tokens, 0, 1,
                             static_cast<int32_t>(request_->n)};
  absl::Status status = SubmitStep();
  if (!status.ok()) {
    CancelAll();
    DropContexts();
    ended_ = true;
  }
  return status;
}

scheduler::ContextId BeamExchange::ContextOf(size_t beam, bool is_next) const {
  if (first_context_ == 0) return {};
  const uint64_t half = is_next == odd_step_ ? 0 : static_cast<uint64_t>(request_->beam_width);
  return scheduler::ContextId{first_context_ + half + beam};
}

// One request of one token for each beam.
absl::Status BeamExchange::SubmitStep() {
  const GenerationRequest& asked = request_->generations.front();
  const std::span<const BeamSearch::Beam> beams = search_.beams();
  next_.assign(beams.size(), {});
  open_ = beams.size();
  for (size_t b = 0; b < beams.size(); ++b) {
    GenerationRequest step;
    step.prompt.reserve(asked.prompt.size() + beams[b].tokens.size());
    step.prompt = asked.prompt;
    for (const engine::SampledToken& token : beams[b].tokens) step.prompt.push_back(token.token);
    step.max_tokens = 1;
    step.sampling.temperature = 0;
    step.sampling.num_logprobs =
        std::min(search_.num_alternatives(), context_->dependencies.codec->vocab());
    step.draft.off = true;
    step.from = ContextOf(beams[b].parent, /*is_next=*/false);
    step.keep = ContextOf(b, /*is_next=*/true);
    step.cache_space = asked.cache_space;
    step.tenant = asked.tenant;
    step.priority = asked.priority;
    step.deadline_us = asked.deadline_us;
    step.workflow = asked.workflow;
    absl::Status status = SubmitToEngine(std::move(step), inbox_->SinkFor(shared_from_this(), b));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void BeamExchange::Take(size_t prompt, GenerationEvent event) {
  RequestRecord& record = writer_->record();
  if (event.queued_seconds >= 0 && record.queued_seconds < 0) {
    context_->dependencies.metrics->ObserveQueueTime(event.queued_seconds);
    record.queued_seconds = record.prepared_seconds + event.queued_seconds;
  }
  if (search_.beams()[0].tokens.empty()) cached_tokens_ += event.cached_tokens;
  if (!event.tokens.empty()) next_[prompt] = std::move(event.tokens[0].top);
  if (!event.finished) return;
  if (absl::Status failure = FailureOf(event); !failure.ok()) return Fail(failure);
  if (--open_ == 0) EndStep();
}

void BeamExchange::EndStep() {
  search_.Advance(next_);
  if (search_.done()) return Finish();
  odd_step_ = !odd_step_;
  ids_.clear();
  if (absl::Status status = SubmitStep(); !status.ok()) Fail(status);
}

// The beams are the choices of an answer, each in one event.
void BeamExchange::Finish() {
  const auto count = static_cast<size_t>(request_->n);
  std::vector<BeamSearch::Beam> best = search_.Best(count);
  if (best.size() < count) {
    return Fail(absl::InvalidArgumentError("there are fewer answers than 'n': let them be longer"));
  }
  for (size_t i = 0; i < best.size(); ++i) {
    for (engine::SampledToken& token : best[i].tokens) {
      const auto shown = static_cast<size_t>(request_->logprobs ? request_->top_logprobs : 0);
      if (token.top.size() > shown) token.top.resize(shown);
    }
    GenerationEvent event;
    event.branch = static_cast<int32_t>(i);
    event.tokens = std::move(best[i].tokens);
    event.cached_tokens = i == 0 ? cached_tokens_ : 0;
    event.finished = true;
    event.reason = best[i].stopped ? FinishReason::kStop : FinishReason::kLength;
    Answer::Output output;
    answer_.Take(0, std::move(event), &output);
  }
  if (!answer_.error().ok()) return Fail(answer_.error());
  RequestRecord& record = writer_->record();
  record.last_event_seconds = SecondsBetween(received_, Clock::now());
  record.first_token_seconds = record.last_event_seconds;
  sender_.SendAtOnce(answer_, [this] { End(); });
}

void BeamExchange::Fail(const absl::Status& status) {
  CancelAll();
  End();
  sender_.SendError(status);
}

// Behind the cancellation of what may still leave one.
void BeamExchange::DropContexts() {
  if (first_context_ == 0) return;
  const auto count = 2 * static_cast<uint64_t>(request_->beam_width);
  for (uint64_t i = 0; i < count; ++i) {
    context_->dependencies.generation->DropContext(scheduler::ContextId{first_context_ + i});
  }
}

void BeamExchange::End() {
  EngineExchange::End();
  DropContexts();
  sender_.Count();
  CountAnswer(answer_.usage(), answer_.finish_reasons());
}

}  // namespace heddle::server
