#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

namespace heddle::server {
namespace {

constexpr size_t kReceiveBytes = size_t{16} << 10;
// Of buffers for answers, by a connection that has none to send.
constexpr size_t kKeptBytes = size_t{64} << 10;
// Of requests that wait behind the one in hand.
constexpr size_t kMaxPipelinedBytes = size_t{64} << 10;
// After an error answer the client may still be sending: so much is thrown away, for so long, so
// that it reads the answer (413 to an enormous body) before it sees a reset.
constexpr size_t kMaxLingerBytes = size_t{64} << 20;
constexpr auto kLingerTime = std::chrono::seconds(2);

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Connection::Connection(std::unique_ptr<Stream> stream, Handler* handler,
                       const ConnectionLimits& limits, UnsentBytes* unsent,
                       std::function<std::string()> new_request_id, ClosedCallback on_closed)
    : stream_(std::move(stream)),
      handler_(handler),
      limits_(limits),
      unsent_(unsent),
      new_request_id_(std::move(new_request_id)),
      on_closed_(std::move(on_closed)) {}

Connection::~Connection() = default;

void Connection::Start() {
  parser_ = std::make_unique<RequestParser>(limits_.parser);
  deadline_ = Clock::now() + limits_.header_timeout;
  if (!stream_->needs_handshake()) {
    Read();
    return;
  }
  state_ = State::kHandshake;
  stream_->Handshake(
      [self = shared_from_this()](const auto& error, size_t) { self->OnHandshake(error); });
}

void Connection::OnHandshake(const boost::system::error_code& error) {
  if (state_ == State::kClosed) return;
  if (!error) {
    state_ = State::kIdle;
    draining_ ? Close() : Read();
    return;
  }
  handler_->OnHandshakeFailed(error.message());
  if (stream_->client_is_plain()) {
    const HttpResponse response =
        handler_->MakeError(400, "this port speaks HTTPS, and the request came as plain HTTP", "");
    stream_->WritePlain(ResponseHead(response, BodyFraming::kLength, response.body.size(),
                                     /*keep_alive=*/false, "") +
                        response.body);
  }
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
  if (std::shared_ptr<Exchange> exchange = std::move(exchange_); exchange && !response_done_) {
    exchange->OnDisconnect();
  }
  if (handling) Report(/*cancelled=*/true);
  stream_->Close();
  CountUnsent();
  on_closed_(this);
}

void Connection::OnTick(Clock::time_point now) {
  switch (state_) {
    case State::kHandshake:
      if (now < deadline_) return;
      handler_->OnHandshakeFailed("it took too long");
      Close();
      return;
    case State::kIdle:
    case State::kLingering:
      if (now >= deadline_) Close();
      return;
    case State::kReading:
      if (now >= deadline_) FailReading(408, "the request took too long to arrive");
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

// ---- reading ----

void Connection::Read() {
  if (read_in_flight_ || state_ == State::kClosed) return;
  if (state_ == State::kHandling && input_.size() >= kMaxPipelinedBytes) return;
  read_in_flight_ = true;
  receive_buffer_.resize(kReceiveBytes);
  stream_->ReadSome(
      boost::asio::buffer(receive_buffer_),
      [self = shared_from_this()](const auto& error, size_t bytes) { self->OnRead(error, bytes); });
}

void Connection::OnRead(const boost::system::error_code& error, size_t bytes) {
  read_in_flight_ = false;
  if (state_ == State::kClosed) return;
  if (error) {
    OnClientGone();
    return;
  }
  if (state_ == State::kLingering) {
    lingered_bytes_ += bytes;
    lingered_bytes_ > kMaxLingerBytes ? Close() : Read();
    return;
  }
  input_.append(receive_buffer_, 0, bytes);
  if (state_ != State::kHandling) Parse();
  Read();
}

void Connection::Parse() {
  if (state_ == State::kIdle && !input_.empty()) {
    state_ = State::kReading;
    deadline_ = Clock::now() + limits_.header_timeout;
  }
  if (state_ != State::kReading) return;
  bool in_header = parser_->state() == RequestParser::State::kHeader;
  input_.erase(0, parser_->Feed(input_));
  RequestParser::State now = parser_->state();
  if (now == RequestParser::State::kFailed) {
    FailReading(parser_->error_status(), parser_->error_message());
  } else if (now == RequestParser::State::kDone) {
    Dispatch();
  } else if (now == RequestParser::State::kBody) {
    if (in_header) deadline_ = Clock::now() + limits_.body_timeout;
    if (parser_->expects_continue() && !continue_sent_) {
      continue_sent_ = true;
      outgoing_.append("HTTP/1.1 100 Continue\r\n\r\n");
      Flush();
    }
  }
}

void Connection::Dispatch() {
  HttpRequest request = parser_->TakeRequest();
  parser_.reset();  // its memory is not needed while a long answer streams
  state_ = State::kHandling;
  request.received = received_ = Clock::now();
  request.request_id = RequestIdOf(request);
  http11_ = request.http11;
  keep_alive_ = request.keep_alive && !leaving_ && !draining_;
  head_only_ = request.method == "HEAD";
  record_ = RequestRecord();
  record_.method = request.method;
  record_.path = request.path;
  record_.request_id = request.request_id;
  std::shared_ptr<Exchange> exchange = handler_->Handle(std::move(request), this);
  if (state_ == State::kHandling && !response_done_) exchange_ = std::move(exchange);
}

std::string Connection::RequestIdOf(const HttpRequest& request) const {
  const std::string_view sent = request.Header("X-Request-Id");
  return IsRequestId(sent) ? std::string(sent) : new_request_id_();
}

// Answers what cannot be parsed, or did not come in time, and closes: where the next request would
// begin is not known.
void Connection::FailReading(int status, std::string_view message) {
  HttpRequest request;
  if (parser_->state() != RequestParser::State::kHeader) request = parser_->TakeRequest();
  record_ = RequestRecord();
  record_.method = request.method.empty() ? "-" : request.method;
  record_.path = request.path.empty() ? "-" : request.path;
  record_.request_id = RequestIdOf(request);
  state_ = State::kHandling;
  received_ = Clock::now();
  keep_alive_ = false;
  head_only_ = false;
  Send(handler_->MakeError(status, message, request.path));
}

void Connection::OnClientGone() {
  if (state_ == State::kHandling && response_done_) {
    keep_alive_ = false;  // it only ended its sending half: the answer still goes out
    return;
  }
  Close();
}

// ---- writing ----

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
        self->OnWritten(error, bytes);
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
  if (buffered_bytes() > 0) {
    Flush();
    return;
  }
  last_write_ = Clock::now();
  if (state_ == State::kHandling && response_done_) FinishRequest();
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
    Linger();
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
  deadline_ = Clock::now() + limits_.idle_timeout;
  parser_ = std::make_unique<RequestParser>(limits_.parser);
  Parse();
  Read();
}

void Connection::Linger() {
  state_ = State::kLingering;
  deadline_ = Clock::now() + kLingerTime;
  input_.clear();
  stream_->EndSending([self = shared_from_this()](const auto&, size_t) {});
  Read();
}

void Connection::Report(bool cancelled) {
  record_.total_seconds = Seconds(Clock::now() - received_);
  record_.outcome = OutcomeOf(record_, cancelled);
  handler_->OnFinished(record_);
}

}  // namespace heddle::server
