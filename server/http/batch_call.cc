#include "server/http/batch_call.h"

#include <utility>

namespace heddle::server {

void BatchCall::Begin(const BatchRecord& batch, std::string request_id, Handler* handler) {
  received_ = Clock::now();
  HttpRequest request;
  request.method = "POST";
  request.path = batch.endpoint;
  request.headers = {{"Content-Type", "application/json"}};
  request.body = line_.body;
  request.request_id = std::move(request_id);
  request.received = received_;
  request.sender = batch.owner;
  record_.method = request.method;
  record_.path = request.path;
  record_.request_id = request.request_id;
  record_.is_background = true;
  std::shared_ptr<Exchange> exchange = handler->Handle(std::move(request), this);
  if (!is_done_) exchange_ = std::move(exchange);
}

void BatchCall::Cancel(Handler* handler) {
  if (is_done_) return Report(handler);
  is_done_ = true;
  if (exchange_ != nullptr) exchange_->OnDisconnect();
  record_.outcome = Outcome::kCancelled;
  record_.total_seconds = SecondsBetween(received_, Clock::now());
  handler->OnFinished(record_);
}

void BatchCall::Report(Handler* handler) {
  record_.outcome = OutcomeOf(record_, /*cancelled=*/false);
  record_.total_seconds = SecondsBetween(received_, Clock::now());
  handler->OnFinished(record_);
}

void BatchCall::Hold(bool holds) {
  if (is_held_ == holds) return;
  is_held_ = holds;
  if (exchange_ == nullptr) return;
  holds ? exchange_->OnTick(Clock::now()) : exchange_->OnCaughtUp();
}

void BatchCall::OnTick(Clock::time_point now) {
  if (exchange_ != nullptr && !is_done_) exchange_->OnTick(now);
}

void BatchCall::Send(HttpResponse response) {
  if (is_done_) return;
  is_done_ = true;
  record_.status = response.status;
  response_ = std::move(response);
  on_done_(shared_from_this());
}

// No endpoint of batches streams, since its lines must not ask for it.
void BatchCall::StartStream(HttpResponse head, std::string_view) { record_.status = head.status; }

void BatchCall::Abort() {
  HttpResponse response;
  response.status = 500;
  response.body = R"({"error":{"message":"the request failed","type":"server_error"}})";
  Send(std::move(response));
}

}  // namespace heddle::server
