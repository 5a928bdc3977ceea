// The part of Connection that receives requests: the reaction to a header, and the memory for a
// body.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "server/http/connection.h"

namespace heddle::server {
namespace {

// Bodies up to this size need no place in the budget: one read has brought them before any check,
// and most requests are never delayed by others' large ones.
constexpr uint64_t kFreeBodyBytes = uint64_t{16} << 10;
// The unread rest of a refused request's body up to which the connection is kept.
constexpr uint64_t kMaxRefusedBodyBytes = uint64_t{64} << 10;

}  // namespace

void Connection::OnReadingTick(Clock::time_point now) {
  const bool waits = body_place_ && !body_place_.is_granted();
  if (waits && now >= deadline_) {
    FailReading(503, "too many requests are being received; try again", Refusal::kBodyMemory);
  } else if (now >= deadline_) {
    FailReading(408, "the request took too long to arrive",
                head_checked_ ? Refusal::kSlowBody : Refusal::kSlowHeader);
  } else if (body_place_ && !waits && now - last_body_byte_ >= limits_.body_stall_timeout &&
             bodies_->num_waiting() > 0) {
    FailReading(408, "the request stopped arriving, and others wait for its place",
                Refusal::kSlowBody);
  }
}

void Connection::Parse() {
  while (state_ == State::kIdle || state_ == State::kReading) {
    if (body_place_ && !body_place_.is_granted()) return;
    if (SkipRefusedBody() || input_.empty()) return;
    const size_t used = head_checked_ ? parser_->Feed(input_) : parser_->FeedHeader(input_);
    input_.erase(0, used);
    if (!parser_->has_begun()) return;
    if (state_ == State::kIdle) {
      state_ = State::kReading;
      deadline_ = Clock::now() + limits_.header_timeout;
    }
    const RequestParser::State now = parser_->state();
    if (now == RequestParser::State::kFailed) {
      FailReading(parser_->error_status(), parser_->error_message());
      return;
    }
    if (now == RequestParser::State::kHeader) return;
    last_body_byte_ = Clock::now();
    if (!head_checked_) {
      OnHead();
    } else if (now == RequestParser::State::kBody && used == 0) {
      return;
    }
    if (state_ != State::kReading) return;
    if (now == RequestParser::State::kDone) {
      Dispatch();
    } else {
      AskForBodyMemory();
    }
  }
}

// Returns true if more of it has to come.
bool Connection::SkipRefusedBody() {
  if (refused_body_bytes_ == 0) return false;
  const size_t bytes = static_cast<size_t>(std::min<uint64_t>(refused_body_bytes_, input_.size()));
  input_.erase(0, bytes);
  refused_body_bytes_ -= bytes;
  return refused_body_bytes_ > 0;
}

void Connection::OnHead() {
  head_checked_ = true;
  body_since_ = last_body_byte_;
  deadline_ = body_since_ + limits_.body_timeout;
  RequestRecord record;
  if (std::optional<HttpResponse> refusal = handler_->CheckHead(parser_->head(), &record)) {
    record_ = std::move(record);
    Refuse(*std::move(refusal));
  }
}

// Answers by the header alone. The connection is kept if it is known that little more will come.
void Connection::Refuse(HttpResponse response) {
  const bool done = parser_->state() == RequestParser::State::kDone;
  const std::optional<uint64_t> rest = done ? std::optional<uint64_t>(0) : parser_->body_length();
  const bool goes_on =
      rest.has_value() && *rest <= kMaxRefusedBodyBytes && !parser_->expects_continue();
  BeginAnswer(parser_->TakeRequest());
  if (goes_on) {
    refused_body_bytes_ = *rest;
  } else {
    keep_alive_ = false;
  }
  Send(std::move(response));
}

// A body that is not small needs a place in the budget of all bodies, and is not read before it has
// one; a chunked body is charged the largest size.
void Connection::AskForBodyMemory() {
  if (!body_place_) {
    const std::optional<uint64_t> length = parser_->body_length();
    const uint64_t known = length.value_or(parser_->received_body_bytes());
    if (known > kFreeBodyBytes) {
      const uint64_t bytes = length.value_or(limits_.parser.max_body_bytes);
      auto wake = [executor = stream_->executor(), weak = weak_from_this()] {
        boost::asio::post(executor, [weak] {
          if (auto self = weak.lock()) self->Guarded([&] { self->OnBodyMemory(); });
        });
      };
      body_place_ = bodies_->Ask(static_cast<int64_t>(bytes), std::move(wake));
    }
  }
  if (!body_place_ || body_place_.is_granted()) SendContinue();
}

void Connection::OnBodyMemory() {
  if (state_ != State::kReading) return;
  last_body_byte_ = Clock::now();
  body_since_ = last_body_byte_;  // its time begins now
  deadline_ = body_since_ + limits_.body_timeout;
  SendContinue();
  Parse();
  Read();
}

void Connection::SendContinue() {
  if (!parser_->expects_continue() || continue_sent_) return;
  continue_sent_ = true;
  outgoing_.append("HTTP/1.1 100 Continue\r\n\r\n");
  Flush();
}

}  // namespace heddle::server
