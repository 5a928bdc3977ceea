#include "server/http/http2_call.h"

#include <boost/asio/post.hpp>
#include <charconv>
#include <utility>

#include "server/http/http2_connection.h"
#include "server/http/request_headers.h"

namespace heddle::server {
namespace {

// Bodies up to this size need no place in the budget: the first window holds them.
constexpr uint64_t kFreeStreamBytes = uint64_t{16} << 10;

std::optional<uint64_t> LengthOf(const HttpRequest& request) {
  const std::string_view text = request.Header("Content-Length");
  uint64_t length = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), length);
  if (text.empty() || parsed.ec != std::errc()) return std::nullopt;
  return length;
}

// The request of a header, or what is wrong with it.
std::optional<HeaderFault> ReadHead(Http2Head head, HttpRequest* request) {
  request->method = std::move(head.method);
  request->headers = std::move(head.headers);
  if (head.is_too_large) return HeaderFault{431, "the request's header is too large"};
  if (!ParseTarget(head.path, request)) {
    return HeaderFault{400, "the request's target must be a path, with whole percent escapes"};
  }
  const std::string_view host = request->Header("Host");
  if (head.authority.empty() && host.empty()) {
    return HeaderFault{400, "a request must have an authority or a Host header"};
  }
  if (!head.authority.empty() && !host.empty() && host != head.authority) {
    return HeaderFault{400, "a request's Host header must be its authority"};
  }
  if (host.empty()) request->headers.emplace_back("Host", std::move(head.authority));
  return FaultOf(*request);
}

}  // namespace

void Http2Call::OnHead(Http2Head head, bool ends) {
  received_ = Clock::now();
  body_since_ = received_;
  deadline_ = received_ + connection_->limits().body_timeout;
  last_body_byte_ = received_;
  last_progress_ = received_;
  request_ended_ = ends;
  const std::optional<HeaderFault> fault = ReadHead(std::move(head), &request_);
  record_.method = request_.method;
  record_.path = request_.path;
  record_.request_id = connection_->RequestIdOf(request_);
  head_only_ = request_.method == "HEAD";
  if (fault.has_value()) return Refuse(fault->status, fault->message);
  if (auto refusal = connection_->handler()->CheckHead(request_, &record_)) {
    state_ = State::kHandling;
    return Send(*std::move(refusal));
  }
  expects_continue_ = EqualsIgnoringCase(request_.Header("Expect"), "100-continue");
  body_length_ = LengthOf(request_);
  if (body_length_.value_or(0) > connection_->limits().parser.max_body_bytes) {
    return Refuse(413, "the request's body is larger than this server takes (--max-body-bytes)");
  }
  if (ends) return Dispatch();
  AskForBodyMemory();
}

void Http2Call::Refuse(int status, std::string_view message) {
  state_ = State::kHandling;
  body_place_.Release();
  request_.body = std::string();
  HttpResponse response = connection_->handler()->MakeError(status, message, request_.path);
  if (status == 503) response.headers.emplace_back("Retry-After", "5");
  Send(std::move(response));
}

// As of HTTP/1.1 (Connection::AskForBodyMemory): what is not small is charged whole, before more
// than the first window of it comes; a body of unknown length is charged the largest size.
void Http2Call::AskForBodyMemory() {
  if (!body_place_) {
    const uint64_t known = body_length_.value_or(request_.body.size());
    if (known > kFreeStreamBytes) {
      const uint64_t bytes = body_length_.value_or(connection_->limits().parser.max_body_bytes);
      auto wake = [executor = connection_->executor(), weak = weak_from_this()] {
        boost::asio::post(executor, [weak] {
          const auto self = weak.lock();
          if (self == nullptr || self->state_ != State::kReading) return;
          self->connection_->Guarded([&] { self->OnBodyMemory(); });
        });
      };
      body_place_ = connection_->shared().bodies->Ask(static_cast<int64_t>(bytes), std::move(wake));
    }
  }
  if (body_place_ && !body_place_.is_granted()) return;
  if (body_place_) connection_->session()->Accept(id_);
  if (std::exchange(expects_continue_, false)) connection_->session()->Continue(id_);
}

void Http2Call::OnBodyMemory() {
  last_body_byte_ = Clock::now();
  body_since_ = last_body_byte_;  // its time begins now
  deadline_ = body_since_ + connection_->limits().body_timeout;
  AskForBodyMemory();
  connection_->Flush();
}

Clock::time_point Http2Call::body_since() const {
  const bool waits = body_place_ && !body_place_.is_granted();
  return state_ == State::kReading && !waits ? body_since_ : Clock::time_point::max();
}

void Http2Call::OnBody(std::string_view bytes) {
  if (state_ != State::kReading) return;  // it was refused
  last_body_byte_ = Clock::now();
  if (request_.body.size() + bytes.size() > connection_->limits().parser.max_body_bytes) {
    return Refuse(413, "the request's body is larger than this server takes (--max-body-bytes)");
  }
  request_.body.append(bytes);
  AskForBodyMemory();
}

void Http2Call::OnBodyEnd() {
  request_ended_ = true;
  if (state_ == State::kReading) Dispatch();
}

void Http2Call::Dispatch() {
  state_ = State::kHandling;
  body_place_.Release();  // from here on the limits of prepare_pool.h apply
  received_ = Clock::now();
  last_progress_ = received_;
  RequestRecord record;
  record.method = record_.method;
  record.path = record_.path;
  record.request_id = record_.request_id;
  record_ = std::move(record);
  HttpRequest request = std::move(request_);
  request.received = received_;
  request.request_id = record_.request_id;
  request.peer = connection_->peer();
  std::shared_ptr<Exchange> exchange = connection_->handler()->Handle(std::move(request), this);
  if (state_ == State::kHandling && !response_done_) exchange_ = std::move(exchange);
}

void Http2Call::OnAnswered() {
  Report(/*cancelled=*/false);
  exchange_.reset();
  // The rest of the request is of no use (RFC 9113, section 8.1).
  if (!request_ended_) connection_->session()->Reset(id_, Http2Session::Reason::kNoError);
}

void Http2Call::OnClosed() {
  state_ = State::kOver;
  body_place_.Release();
  if (std::shared_ptr<Exchange> exchange = std::move(exchange_); exchange && !response_done_) {
    exchange->OnDisconnect();
  }
  Report(/*cancelled=*/true);
}

void Http2Call::OnTick(Clock::time_point now) {
  const ConnectionLimits& limits = connection_->limits();
  if (state_ == State::kReading) {
    const bool waits = body_place_ && !body_place_.is_granted();
    Handler* handler = connection_->handler();
    if (now >= deadline_) {
      handler->OnRefused(waits ? Refusal::kBodyMemory : Refusal::kSlowBody);
      waits ? Refuse(503, "too many requests are being received; try again")
            : Refuse(408, "the request took too long to arrive");
    } else if (body_place_ && !waits && now - last_body_byte_ >= limits.body_stall_timeout &&
               connection_->shared().bodies->num_waiting() > 0) {
      handler->OnRefused(Refusal::kSlowBody);
      Refuse(408, "the request stopped arriving, and others wait for its place");
    }
    return;
  }
  if (std::shared_ptr<Exchange> exchange = exchange_) exchange->OnTick(now);
  if (state_ != State::kHandling) return;
  if (unsent_bytes() > 0) {
    if (now - last_progress_ >= limits.write_timeout) Abort();
  } else if (streaming_ && !response_done_ && now - last_progress_ >= limits.keep_alive_interval) {
    Write(keep_alive_);
  }
}

void Http2Call::OnSent(Clock::time_point now) {
  const size_t unsent = unsent_bytes();
  if (unsent == last_unsent_) return;
  const bool took = unsent < last_unsent_;
  last_unsent_ = unsent;
  if (took) last_progress_ = now;
  const bool has_caught_up = pace_.Count(unsent, now);
  const std::shared_ptr<Exchange> exchange = exchange_;
  if (exchange == nullptr || response_done_) return;
  if (has_caught_up) exchange->OnCaughtUp();
  if (unsent == 0 && !response_done_) exchange->OnDrained();
}

size_t Http2Call::unsent_bytes() const { return connection_->session()->unsent_bytes(id_); }

bool Http2Call::is_overfull() const {
  return unsent_bytes() >
         connection_->shared().unsent->Limit(connection_->limits().max_unsent_bytes);
}

void Http2Call::Respond(const HttpResponse& response, std::optional<size_t> body_bytes,
                        bool has_body) {
  record_.status = response.status;
  HttpResponse head = response;
  for (auto& header : record_.answer_headers) head.headers.push_back(std::move(header));
  record_.answer_headers.clear();
  connection_->session()->Start(id_, head.status, Http2Fields(head, body_bytes, record_.request_id),
                                has_body);
}

void Http2Call::Send(HttpResponse response) {
  if (state_ == State::kOver || response_done_) return;
  const std::string body = std::move(response.body);
  const bool has_body = !head_only_ && !body.empty() && response.status != 204;
  response_done_ = true;
  Respond(response, body.size(), has_body);
  if (has_body) {
    connection_->session()->Write(id_, body);
    connection_->session()->End(id_);
    last_unsent_ = unsent_bytes();
  }
  connection_->Flush();
}

void Http2Call::StartStream(HttpResponse head, std::string_view keep_alive) {
  if (state_ == State::kOver) return;
  streaming_ = true;
  keep_alive_ = std::string(keep_alive);
  Respond(head, std::nullopt, /*has_body=*/!head_only_);
  connection_->Flush();
}

void Http2Call::Write(std::string_view data) {
  if (data.empty() || state_ != State::kHandling || response_done_ || head_only_) return;
  last_progress_ = unsent_bytes() == 0 ? Clock::now() : last_progress_;
  connection_->session()->Write(id_, data);
  last_unsent_ = unsent_bytes();
  pace_.Count(last_unsent_, Clock::now());
  connection_->Flush();
}

void Http2Call::EndStream() {
  if (state_ == State::kOver) return;
  response_done_ = true;
  connection_->session()->End(id_);
  connection_->Flush();
}

void Http2Call::Abort() {
  if (state_ == State::kOver) return;
  connection_->session()->Reset(id_, Http2Session::Reason::kCancel);
  const std::shared_ptr<Exchange> exchange = std::move(exchange_);
  state_ = State::kOver;
  if (exchange != nullptr && !response_done_) exchange->OnDisconnect();
  Report(/*cancelled=*/true);
  connection_->Flush();
}

void Http2Call::Report(bool cancelled) {
  if (std::exchange(is_reported_, true)) return;
  record_.total_seconds = SecondsBetween(received_, Clock::now());
  record_.outcome = OutcomeOf(record_, cancelled);
  connection_->handler()->OnFinished(record_);
}

}  // namespace heddle::server
