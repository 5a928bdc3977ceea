#include "server/http/preparing_exchange.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/http/request_guard.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

constexpr double kAdapterRetrySeconds = 5;

double SecondsFrom(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

}  // namespace

PreparingExchange::PreparingExchange(ServerContext* server, std::shared_ptr<EventInbox> inbox,
                                     std::unique_ptr<Preparation> preparation,
                                     ResponseWriter* writer, uint64_t client,
                                     Clock::time_point received, Fail fail)
    : server_(server),
      inbox_(std::move(inbox)),
      preparation_(std::move(preparation)),
      writer_(writer),
      client_(client),
      request_id_(writer->record().request_id),
      received_(received),
      fail_(std::move(fail)) {}

void PreparingExchange::Start(size_t body_bytes) {
  Lane lane = body_bytes <= kMaxShortBytes ? Lane::kShort : Lane::kLong;
  if (body_bytes <= kMaxInlineBytes) {
    const absl::Status status = Read({.short_only = true});
    if (!IsTakesLong(status)) {
      OnRead(status);
      return;
    }
  }
  const absl::Status submitted = server_->prepare->Submit(lane, shared_from_this(), body_bytes);
  if (submitted.ok()) return;
  End();
  fail_(submitted);
}

absl::Status PreparingExchange::Read(const Patience& patience) {
  const Clock::time_point began = Clock::now();
  absl::Status status = Guarded(server_->dependencies, "read", request_id_,
                                [this, &patience] { return preparation_->Read(patience); });
  spent_seconds_ += SecondsFrom(began);
  return status;
}

absl::Status PreparingExchange::Ask(const PrepareTurn& turn) const {
  if (ended_) return absl::CancelledError("nobody waits for this request any more");
  switch (turn.Ask()) {
    case PrepareTurn::Answer::kStop:
      return absl::UnavailableError("the server is shutting down");
    case PrepareTurn::Answer::kLater:
      return TakesLong();
    case PrepareTurn::Answer::kGoOn:
      break;
  }
  return absl::OkStatus();
}

PrepareTask::Next PreparingExchange::Run(const PrepareTurn& turn) {
  if (ended_) return Next::kDone;
  absl::Status status =
      Read({.short_only = turn.lane() == Lane::kShort, .ask = [this, &turn] { return Ask(turn); }});
  if (IsTakesLong(status)) return Next::kAgainInLongLane;
  if (ended_) return Next::kDone;
  waited_seconds_ = turn.waited_seconds();
  inbox_->Post([self = shared_from_this(), status = std::move(status)] { self->OnRead(status); });
  return Next::kDone;
}

void PreparingExchange::OnRead(const absl::Status& read) {
  if (ended_) return;
  if (read.ok()) writer_->record().prepared_seconds = SecondsFrom(received_);
  server_->dependencies.metrics->ObservePreparation(waited_seconds_, spent_seconds_);
  const ModelChoice* model = read.ok() ? preparation_->model() : nullptr;
  if (model != nullptr && !model->adapters.empty()) {
    WaitForAdapters(*model);
  } else {
    BeginAnswer(read, {});
  }
}

void PreparingExchange::WaitForAdapters(const ModelChoice& model) {
  waits_for_adapter_ = true;
  adapter_wait_since_ = Clock::now();
  adapter_wait_ = server_->dependencies.adapter_sets->Acquire(
      model.adapters,
      [self = shared_from_this(), inbox = inbox_](absl::StatusOr<AdapterLease> lease) {
        inbox->Post([self, lease = std::move(lease)] { self->OnAdapter(lease); });
      });
}

void PreparingExchange::OnAdapter(const absl::StatusOr<AdapterLease>& lease) {
  if (ended_) return;
  waits_for_adapter_ = false;
  server_->dependencies.metrics->ObserveAdapterWait(SecondsFrom(adapter_wait_since_));
  scheduler::AdapterUse adapter;
  if (lease.ok())
    adapter = {lease->id, lease->scale, lease->image->pages_of_each_rank(), lease->image};
  BeginAnswer(lease.status(), std::move(adapter));
}

// Hands over, or answers with the error.
void PreparingExchange::BeginAnswer(const absl::Status& read, scheduler::AdapterUse adapter) {
  const absl::Status status =
      Guarded(server_->dependencies, "begin", request_id_, [&]() -> absl::Status {
        HEDDLE_RETURN_IF_ERROR(read);
        HEDDLE_ASSIGN_OR_RETURN(answer_, preparation_->Begin(std::move(adapter)));
        ended_ = answer_ == nullptr;
        return absl::OkStatus();
      });
  preparation_.reset();  // a body's memory is not kept while a long answer is sent
  if (status.ok()) return;
  End();
  if (writer_->record().status == 0) {
    fail_(status);
  } else {
    writer_->Abort();  // an answer that has begun cannot be replaced
  }
}

void PreparingExchange::OnDisconnect() {
  if (answer_ != nullptr) {
    answer_->OnDisconnect();
  } else if (!ended_) {
    End();
  }
}

void PreparingExchange::OnCaughtUp() {
  if (answer_ != nullptr) answer_->OnCaughtUp();
}

void PreparingExchange::OnDrained() {
  if (answer_ != nullptr) answer_->OnDrained();
}

void PreparingExchange::OnTick(Clock::time_point now) {
  if (answer_ != nullptr) {
    answer_->OnTick(now);
    return;
  }
  if (ended_) return;
  const Clock::duration limit = LifeLimit(writer_->record(), server_->options.request_timeout);
  if (IsOverdue(now - received_, limit)) {
    End();
    fail_(OverdueError(limit));
  } else if (waits_for_adapter_ && now - adapter_wait_since_ >= kMaxAdapterWait) {
    const std::string adapter = preparation_->model()->adapters.front().name;
    const bool alone = preparation_->model()->adapters.size() == 1;
    End();
    fail_(WithRetryAfter(absl::UnavailableError(base::StrCat(
                             "the adapter ", base::Quote(adapter),
                             alone ? "" : ", or one used beside it,", " is still being loaded")),
                         kAdapterRetrySeconds));
  } else if (lost_) {
    End();
    fail_(absl::UnavailableError("the server has no memory for this request now; send it again"));
  }
}

void PreparingExchange::End() {
  ended_ = true;
  server_->prepare->Cancel(this);
  if (waits_for_adapter_) server_->dependencies.adapter_sets->Cancel(adapter_wait_);
}

}  // namespace heddle::server
