#include "server/http/engine_exchange.h"

#include <utility>

#include "base/status.h"
#include "server/http/request_guard.h"

namespace heddle::server {
namespace {

// No key's tenant: the first digits of pi's fraction.
constexpr uint64_t kBackgroundClient = 0x243f6a8885a308d3;

}  // namespace

absl::Status EngineExchange::SubmitToEngine(GenerationRequest generation, EventSink sink) {
  GenerationService* service = context_->dependencies.generation;
  generation.adapter = adapter_;
  generation.cache_space =
      context_->cache_spaces->Of(generation.tenant, generation.cache_space,
                                 static_cast<uint64_t>(adapter_.id), adapter_.scale);
  generation.id = service->NextId();
  generation.label = writer_->record().request_id;
  if (!generation.branch.empty() && generation.tree.empty()) generation.tree = generation.label;
  generation.peer = writer_->record().peer;
  if (call_ == 0) call_ = static_cast<uint64_t>(generation.id);
  generation.call = call_;
  generation.weight = writer_->record().weight;
  // All of them together have one client's share of the machine, and those of live requests none.
  if (writer_->record().is_background) generation.tenant = kBackgroundClient;
  const RequestId id = generation.id;
  HEDDLE_RETURN_IF_ERROR(service->Submit(std::move(generation), std::move(sink)));
  ids_.push_back(id);
  if (paused_) service->Pause(id);
  return absl::OkStatus();
}

void EngineExchange::Measure(size_t sequence, const GenerationEvent& event) {
  ServerMetrics* metrics = context_->dependencies.metrics;
  RequestRecord& record = writer_->record();
  if (event.queued_seconds >= 0) {
    metrics->ObserveQueueTime(event.queued_seconds);
    if (record.queued_seconds < 0) {
      record.queued_seconds = record.prepared_seconds + event.queued_seconds;
    }
  }
  const Clock::time_point now = Clock::now();
  record.last_event_seconds = SecondsBetween(received_, now);
  if (event.tokens.empty()) return;
  if (record.first_token_seconds < 0) {
    record.first_token_seconds = record.last_event_seconds;
    metrics->ObserveFirstToken(record.first_token_seconds);
  }
  if (last_token_.size() <= sequence) last_token_.resize(sequence + 1);
  Clock::time_point& last = last_token_[sequence];
  if (last != Clock::time_point()) {
    const auto count = static_cast<int64_t>(event.tokens.size());
    metrics->ObserveInterToken(SecondsBetween(last, now) / static_cast<double>(count), count);
  }
  last = now;
}

void EngineExchange::CountAnswer(const Usage& usage, std::vector<std::string> finish_reasons) {
  RequestRecord& record = writer_->record();
  record.prompt_tokens = usage.prompt_tokens;
  record.generated_tokens = usage.completion_tokens;
  record.cached_tokens = usage.cached_tokens;
  record.finish_reasons = std::move(finish_reasons);
  context_->dependencies.metrics->CountTokens(usage.prompt_tokens, usage.cached_tokens,
                                              usage.completion_tokens);
}

void EngineExchange::CancelAll() {
  for (RequestId id : ids_) context_->dependencies.generation->Cancel(id);
}

void EngineExchange::PauseIfBehind() {
  if (paused_ || ended_ || !writer_->is_behind()) return;
  paused_ = true;
  for (RequestId id : ids_) context_->dependencies.generation->Pause(id);
}

void EngineExchange::OnCaughtUp() {
  if (!paused_ || ended_) return;
  paused_ = false;
  for (RequestId id : ids_) context_->dependencies.generation->Resume(id);
}

void EngineExchange::OnEvent(size_t prompt, GenerationEvent event) {
  if (ended_) return;
  const absl::Status status =
      Guarded(context_->dependencies, "event", writer_->record().request_id, [&] {
        Take(prompt, std::move(event));
        return absl::OkStatus();
      });
  if (!status.ok()) FailByException(status);
}

void EngineExchange::OnDisconnect() {
  if (ended_) return;
  CancelAll();
  End();
}

void EngineExchange::OnTick(Clock::time_point now) {
  if (ended_) return;
  const Clock::duration limit = LifeLimit(writer_->record(), context_->options.request_timeout);
  if (IsOverdue(now - received_, limit)) {
    Fail(OverdueError(limit));
  } else if (overflowed()) {  // perhaps no event will come that would tell
    Fail(absl::InternalError("the server could not keep up with this request"));
  } else {
    PauseIfBehind();  // a writer may be behind without having been written to
    Watch();
  }
}

// After the end the writer handles failures: its connection ends.
void EngineExchange::FailByException(const absl::Status& status) {
  const bool tells = !ended_;
  const absl::Status failed =
      Guarded(context_->dependencies, "error", writer_->record().request_id, [&] {
        if (tells) Fail(status);
        return absl::OkStatus();
      });
  if (tells && failed.ok()) return;
  CancelAll();
  ended_ = true;
  writer_->Abort();
}

}  // namespace heddle::server
