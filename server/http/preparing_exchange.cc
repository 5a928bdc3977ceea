#include "server/http/preparing_exchange.h"

#include <utility>

#include "base/status.h"

namespace heddle::server {
namespace {

double SecondsSince(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

}  // namespace

PreparingExchange::PreparingExchange(ServerContext* server, std::shared_ptr<EventInbox> inbox,
                                     std::unique_ptr<Preparation> preparation,
                                     ResponseWriter* writer, Clock::time_point received, Fail fail)
    : server_(server),
      inbox_(std::move(inbox)),
      preparation_(std::move(preparation)),
      writer_(writer),
      received_(received),
      fail_(std::move(fail)) {}

void PreparingExchange::Start(size_t body_bytes) {
  Lane lane = body_bytes <= kMaxShortBytes ? Lane::kShort : Lane::kLong;
  if (body_bytes <= kMaxInlineBytes) {
    const absl::Status status = Read(/*quick=*/true);
    if (!IsTakesLong(status)) {
      OnRead(status);
      return;
    }
    lane = Lane::kLong;
  }
  const absl::Status submitted = server_->prepare->Submit(lane, shared_from_this(), body_bytes);
  if (submitted.ok()) return;
  End();
  fail_(submitted);
}

absl::Status PreparingExchange::Read(bool quick) {
  const Clock::time_point began = Clock::now();
  absl::Status status = preparation_->Read(quick);
  spent_seconds_ += SecondsSince(began);
  return status;
}

PrepareTask::Next PreparingExchange::Run(Lane lane, double waited_seconds) {
  if (ended_) return Next::kDone;
  absl::Status status = Read(/*quick=*/lane == Lane::kShort);
  if (lane == Lane::kShort && IsTakesLong(status)) return Next::kAgainInLongLane;
  waited_seconds_ = waited_seconds;
  inbox_->Post([self = shared_from_this(), status = std::move(status)] { self->OnRead(status); });
  return Next::kDone;
}

void PreparingExchange::OnRead(const absl::Status& status) {
  if (ended_) return;
  if (status.ok()) writer_->record().prepared_seconds = SecondsSince(received_);
  server_->dependencies.metrics->ObservePreparation(waited_seconds_, spent_seconds_);
  const auto begin = [this, &status]() -> absl::StatusOr<std::shared_ptr<Exchange>> {
    HEDDLE_RETURN_IF_ERROR(status);
    return preparation_->Begin();
  };
  absl::StatusOr<std::shared_ptr<Exchange>> answer = begin();
  preparation_.reset();  // a body's memory is not kept while a long answer streams
  if (answer.ok()) {
    answer_ = *std::move(answer);
    ended_ = answer_ == nullptr;
  } else {
    End();
    fail_(answer.status());
  }
}

void PreparingExchange::OnDisconnect() {
  if (answer_ != nullptr) {
    answer_->OnDisconnect();
  } else if (!ended_) {
    End();
  }
}

void PreparingExchange::OnTick(Clock::time_point now) {
  if (answer_ != nullptr) {
    answer_->OnTick(now);
    return;
  }
  const Clock::duration limit = server_->options.request_timeout;
  if (ended_ || !IsOverdue(now - received_, limit)) return;
  End();
  fail_(OverdueError(limit));
}

void PreparingExchange::End() {
  ended_ = true;
  server_->prepare->Cancel(this);
}

}  // namespace heddle::server
