#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

namespace heddle::server {
namespace {

constexpr size_t kReceiveBytes = size_t{16} << 10;
// The same for an idle connection: enough for most headers, and 16 MB for four thousand of them.
constexpr size_t kIdleReceiveBytes = size_t{4} << 10;
// Bytes of answer buffers that an idle connection keeps.
constexpr size_t kKeptBytes = size_t{16} << 10;
// Bytes of pipelined requests that wait behind the current one.
constexpr size_t kMaxPipelinedBytes = size_t{64} << 10;
constexpr const char* kRetryAfterSeconds = "5";

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Connection::Connection(std::unique_ptr<Stream> stream, std::string first_bytes, Handler* handler,
                       const Shared& shared, std::function<std::string()> new_request_id,
                       ClosedCallback on_closed)
    : stream_(std::move(stream)),
      handler_(handler),
      limits_(*shared.limits),
      unsent_(shared.unsent),
      bodies_(shared.bodies),
      new_request_id_(std::move(new_request_id)),
      on_closed_(std::move(on_closed)),
      linger_(limits_.write_timeout),
      input_(std::move(first_bytes)) {}

Connection::~Connection() = default;

void Connection::Start() {
  Guarded([&] { Begin(); });
}

void Connection::Begin() {
  parser_ = std::make_unique<RequestParser>(limits_.parser);
  idle_since_ = Clock::now();
  deadline_ = idle_since_ + limits_.header_timeout;
  Parse();
  Read();
}

// Answers a request that is being read, if there is memory for that; in any other state the
// connection's position is unknown.
void Connection::OnException() {
  handler_->OnException("connection", record_.request_id).IgnoreError();
  input_ = std::string();
  if (state_ == State::kReading) {
    try {
      FailReading(503, "the server has no memory left for this request", Refusal::kOutOfMemory);
      return;
    } catch (...) {  // NOLINT(bugprone-empty-catch): closed below
    }
  }
  handler_->OnRefused(Refusal::kOutOfMemory);
  Close();
}

void Connection::Drain() {
  draining_ = true;
  keep_alive_ = false;
  if (state_ == State::kIdle) Close();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  bool handling = state_ == State::kHandling;
  state_ = State::kClosed;
  body_place_.Release();
  if (std::shared_ptr<Exchange> exchange = std::move(exchange_); exchange && !response_done_) {
    exchange->OnDisconnect();
  }
  if (handling) Report(/*cancelled=*/true);
  stream_->Close();
  CountUnsent();
  on_closed_(this);
}

Clock::time_point Connection::idle_since() const {
  if (state_ == State::kReading && head_checked_) {
    const bool waits = body_place_ && !body_place_.is_granted();
    return waits ? Clock::time_point::max()
                 : MayGiveWaySince(body_since_, last_body_byte_, limits_);
  }
  const bool is_busy = state_ == State::kHandling || state_ == State::kClosed;
  return is_busy ? Clock::time_point::max() : idle_since_;
}

void Connection::OnTick(Clock::time_point now) {
  Guarded([&] { CheckTimes(now); });
}

void Connection::CheckTimes(Clock::time_point now) {
  switch (state_) {
    case State::kIdle:
      if (now >= deadline_) Close();
      return;
    case State::kLingering:
      if (linger_.Update(stream_->undelivered_bytes(), now)) Close();
      return;
    case State::kReading:
      OnReadingTick(now);
      return;
    case State::kHandling:
      if (std::shared_ptr<Exchange> exchange = exchange_) exchange->OnTick(now);
      if (state_ != State::kHandling) return;
      if (write_in_flight_) {
        if (now - last_write_ >= limits_.write_timeout) Close();
      } else if (streaming_ && now - last_write_ >= limits_.keep_alive_interval) {
        Write(stream_keep_alive_);
      }
      return;
    case State::kClosed:
      return;
  }
}

void Connection::Read() {
  if (read_in_flight_ || state_ == State::kClosed) return;
  if (state_ == State::kHandling && input_.size() >= kMaxPipelinedBytes) return;
  if (body_place_ && !body_place_.is_granted()) return;
  read_in_flight_ = true;
  const size_t bytes = state_ == State::kIdle ? kIdleReceiveBytes : kReceiveBytes;
  if (receive_buffer_.size() != bytes) receive_buffer_ = std::string(bytes, '\0');
  stream_->ReadSome(boost::asio::buffer(receive_buffer_),
                    [self = shared_from_this()](const auto& error, size_t received) {
                      self->Guarded([&] { self->OnRead(error, received); });
                    });
}

void Connection::OnRead(const boost::system::error_code& error, size_t bytes) {
  read_in_flight_ = false;
  if (state_ == State::kClosed) return;
  if (error) {
    OnClientGone();
    return;
  }
  if (state_ == State::kLingering) {
    linger_.Drop(bytes) ? Read() : Close();
    return;
  }
  input_.append(receive_buffer_, 0, bytes);
  if (state_ != State::kHandling) Parse();
  Read();
}

void Connection::Dispatch() {
  HttpRequest request = parser_->TakeRequest();
  body_place_.Release();  // from here on the limits of prepare_pool.h apply
  record_ = RequestRecord();
  BeginAnswer(request);
  request.received = received_;
  request.request_id = record_.request_id;
  request.peer = stream_->peer();
  std::shared_ptr<Exchange> exchange = handler_->Handle(std::move(request), this);
  if (state_ == State::kHandling && !response_done_) exchange_ = std::move(exchange);
}

void Connection::BeginAnswer(const HttpRequest& request) {
  parser_.reset();  // its memory is not needed while a long answer is sent
  state_ = State::kHandling;
  received_ = Clock::now();
  http11_ = request.http11;
  keep_alive_ = request.keep_alive && !leaving_ && !draining_;
  head_only_ = request.method == "HEAD";
  record_.method = request.method;
  record_.path = request.path;
  record_.request_id = RequestIdOf(request);
}

std::string Connection::RequestIdOf(const HttpRequest& request) const {
  const std::string_view sent = request.Header("X-Request-Id");
  return IsRequestId(sent) ? std::string(sent) : new_request_id_();
}

void Connection::FailReading(int status, std::string_view message, Refusal refusal) {
  handler_->OnRefused(refusal);
  FailReading(status, message);
}

// Answers a request that cannot be parsed, or did not arrive in time, and closes: where the next
// request would begin is unknown.
void Connection::FailReading(int status, std::string_view message) {
  HttpRequest request;
  if (parser_->state() != RequestParser::State::kHeader) request = parser_->TakeRequest();
  body_place_.Release();
  record_ = RequestRecord();
  record_.method = request.method.empty() ? "-" : request.method;
  record_.path = request.path.empty() ? "-" : request.path;
  record_.request_id = RequestIdOf(request);
  state_ = State::kHandling;
  received_ = Clock::now();
  keep_alive_ = false;
  head_only_ = false;
  HttpResponse response = handler_->MakeError(status, message, request.path);
  if (status == 503) response.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  parser_.reset();  // with the partial body, and perhaps `message`
  Send(std::move(response));
}

void Connection::OnClientGone() {
  if (state_ == State::kHandling && response_done_) {
    keep_alive_ = false;  // it only ended its sending half: the answer is still sent
    return;
  }
  Close();
}

void Connection::AppendAnswerHeaders(HttpResponse* response) {
  for (auto& header : record_.answer_headers) response->headers.push_back(std::move(header));
  record_.answer_headers.clear();
}

void Connection::Send(HttpResponse response) {
  record_.status = response.status;
  AppendAnswerHeaders(&response);
  outgoing_.append(ResponseHead(response, BodyFraming::kLength, response.body.size(), keep_alive_,
                                record_.request_id));
  if (!head_only_) outgoing_.append(response.body);
  response_done_ = true;
  Flush();
}

void Connection::StartStream(HttpResponse head, std::string_view keep_alive) {
  record_.status = head.status;
  AppendAnswerHeaders(&head);
  streaming_ = true;
  stream_keep_alive_ = std::string(keep_alive);
  if (!http11_) keep_alive_ = false;
  BodyFraming framing = http11_ ? BodyFraming::kChunked : BodyFraming::kUntilClose;
  outgoing_.append(ResponseHead(head, framing, 0, keep_alive_, record_.request_id));
  Flush();
}

void Connection::Write(std::string_view data) {
  if (data.empty() || state_ != State::kHandling) return;
  if (http11_) {
    AppendChunk(data, &outgoing_);
  } else {
    outgoing_.append(data);
  }
  Flush();
}

void Connection::EndStream() {
  if (http11_) outgoing_.append(kLastChunk);
  response_done_ = true;
  Flush();
}

size_t Connection::buffered_bytes() const {
  return outgoing_.size() + in_flight_.size() - written_;
}

bool Connection::is_overfull() const {
  return buffered_bytes() > unsent_->Limit(limits_.max_unsent_bytes);
}

void Connection::CountUnsent() {
  const size_t now = state_ == State::kClosed ? 0 : buffered_bytes();
  unsent_->Add(static_cast<int64_t>(now) - static_cast<int64_t>(counted_unsent_));
  counted_unsent_ = now;
}

void Connection::Abort() {
  exchange_.reset();
  Close();
}

void Connection::Flush() {
  CountUnsent();
  pace_.Count(buffered_bytes(), Clock::now());
  if (write_in_flight_ || state_ == State::kClosed) return;
  if (written_ == in_flight_.size()) {
    in_flight_.clear();
    written_ = 0;
    std::swap(in_flight_, outgoing_);
  }
  last_write_ = Clock::now();
  write_in_flight_ = true;
  stream_->WriteSome(
      boost::asio::buffer(in_flight_.data() + written_, in_flight_.size() - written_),
      [self = shared_from_this()](const auto& error, size_t bytes) {
        self->Guarded([&] { self->OnWritten(error, bytes); });
      });
}

void Connection::OnWritten(const boost::system::error_code& error, size_t bytes) {
  write_in_flight_ = false;
  if (state_ == State::kClosed) return;
  if (error) {
    Close();
    return;
  }
  written_ += bytes;
  CountUnsent();
  const bool has_caught_up = pace_.Count(buffered_bytes(), Clock::now());
  if (buffered_bytes() > 0) {
    Flush();
  } else {
    last_write_ = Clock::now();
    if (state_ == State::kHandling && response_done_) {
      FinishRequest();
    } else if (std::shared_ptr<Exchange> exchange = exchange_) {
      exchange->OnDrained();
    }
  }
  if (!has_caught_up) return;
  if (std::shared_ptr<Exchange> exchange = exchange_) exchange->OnCaughtUp();
}

void Connection::FinishRequest() {
  Report(/*cancelled=*/false);
  exchange_.reset();
  streaming_ = false;
  response_done_ = false;
  ReleaseBuffers();
  if (keep_alive_ && !draining_) {
    BeginNextRequest();
  } else {
    EndSending();
  }
}

// A long answer's memory is not kept for short ones; nothing is being written now.
void Connection::ReleaseBuffers() {
  if (in_flight_.capacity() + outgoing_.capacity() <= kKeptBytes) return;
  in_flight_ = std::string();
  outgoing_ = std::string();
  written_ = 0;
}

void Connection::BeginNextRequest() {
  state_ = State::kIdle;
  continue_sent_ = false;
  head_checked_ = false;
  idle_since_ = Clock::now();
  deadline_ = idle_since_ + limits_.idle_timeout;
  parser_ = std::make_unique<RequestParser>(limits_.parser);
  Parse();
  Read();
}

void Connection::EndSending() {
  state_ = State::kLingering;
  idle_since_ = Clock::now();
  input_.clear();
  stream_->EndSending([self = shared_from_this()](const auto&, size_t) {});
  linger_.Begin(stream_->undelivered_bytes(), idle_since_);
  Read();
}

void Connection::Report(bool cancelled) {
  record_.total_seconds = Seconds(Clock::now() - received_);
  record_.outcome = OutcomeOf(record_, cancelled);
  handler_->OnFinished(record_);
}

}  // namespace heddle::server
