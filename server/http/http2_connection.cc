#include "server/http/http2_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>
#include <vector>

namespace heddle::server {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;
// Frames in the socket's way at a time. What is more stays with its stream, where it counts.
constexpr size_t kOutgoingBytes = size_t{32} << 10;

Http2Session::Limits SessionLimits(const ConnectionLimits& limits) {
  Http2Session::Limits session;
  session.max_header_bytes = limits.parser.max_header_bytes;
  return session;
}

Http2Guard::Limits GuardLimits(const ConnectionLimits& limits) {
  Http2Guard::Limits guard;
  guard.max_streams = Http2Session::Limits().max_streams;
  guard.max_header_bytes = 2 * limits.parser.max_header_bytes;  // the session tells clients of it
  guard.has_messages = false;
  return guard;
}

Refusal OfHttp(Refusal of_grpc) {
  switch (of_grpc) {
    case Refusal::kGrpcResets:
      return Refusal::kHttp2Resets;
    case Refusal::kGrpcFlood:
      return Refusal::kHttp2Flood;
    default:
      return Refusal::kHttp2Frame;
  }
}

}  // namespace

Http2Connection::Http2Connection(std::unique_ptr<Stream> stream, std::string first_bytes,
                                 Handler* handler, const Connection::Shared& shared,
                                 std::function<std::string()> new_request_id,
                                 ClosedCallback on_closed)
    : stream_(std::move(stream)),
      handler_(handler),
      shared_(shared),
      new_request_id_(std::move(new_request_id)),
      on_closed_(std::move(on_closed)),
      guard_(GuardLimits(*shared.limits), shared.bodies,
             shared.resets->Owes(stream_->peer(), Clock::now())),
      session_(SessionLimits(*shared.limits), this),
      first_bytes_(std::move(first_bytes)),
      receive_buffer_(kReadBytes, '\0'),
      pause_(stream_->executor()),
      linger_(shared.limits->write_timeout) {}

Http2Connection::~Http2Connection() = default;

void Http2Connection::Start() {
  idle_since_ = Clock::now();
  last_write_ = idle_since_;
  Guarded([&] {
    Take(std::exchange(first_bytes_, std::string()));
    Read();
  });
}

void Http2Connection::Guarded(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    is_busy_ = false;
    handler_->OnException("http2", "").IgnoreError();
    handler_->OnRefused(Refusal::kOutOfMemory);
    Close();
  }
}

std::string Http2Connection::RequestIdOf(const HttpRequest& request) const {
  const std::string_view sent = request.Header("X-Request-Id");
  return IsRequestId(sent) ? std::string(sent) : new_request_id_();
}

std::shared_ptr<Http2Call> Http2Connection::Find(int32_t id) const {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : found->second;
}

void Http2Connection::OnHead(int32_t id, Http2Head head, bool ends) {
  auto call = std::make_shared<Http2Call>(this, id);
  calls_[id] = call;
  call->OnHead(std::move(head), ends);
}

void Http2Connection::OnBody(int32_t id, std::string_view bytes) {
  if (const auto call = Find(id)) call->OnBody(bytes);
}

void Http2Connection::OnBodyEnd(int32_t id) {
  if (const auto call = Find(id)) call->OnBodyEnd();
}

void Http2Connection::OnAnswered(int32_t id) {
  if (const auto call = Find(id)) call->OnAnswered();
}

void Http2Connection::OnClosed(int32_t id, bool) {
  const auto call = Find(id);
  if (call == nullptr) return;
  calls_.erase(id);
  ended_calls_.push_back(call);
  call->OnClosed();
  if (calls_.empty()) idle_since_ = Clock::now();
}

void Http2Connection::Read() {
  if (is_closed_ || is_cut_ || is_paused_) return;
  stream_->ReadSome(boost::asio::buffer(receive_buffer_),
                    [self = shared_from_this()](const auto& error, size_t bytes) {
                      self->Guarded([&] { self->OnRead(error, bytes); });
                    });
}

void Http2Connection::PauseReading(Clock::duration pause) {
  is_paused_ = true;
  pause_.expires_after(pause);
  pause_.async_wait([self = shared_from_this()](const auto&) {
    self->Guarded([&] {
      self->is_paused_ = false;
      self->Read();
    });
  });
}

void Http2Connection::OnRead(const boost::system::error_code& error, size_t bytes) {
  ended_calls_.clear();
  if (is_closed_) return;
  if (error) return Close();
  if (!linger_.has_begun()) {
    Take(std::string_view(receive_buffer_).substr(0, bytes));
  } else if (!linger_.Drop(bytes)) {
    return Close();
  }
  Read();
}

void Http2Connection::Take(std::string_view bytes) {
  const Clock::time_point now = Clock::now();
  std::string passed;
  const std::optional<Http2Guard::Fault> fault = guard_.FromClient(bytes, now, &passed);
  if (const int resets = guard_.TakeResets(); resets > 0) {
    const Clock::duration pause = shared_.resets->Spend(peer(), resets, now);
    if (pause > Clock::duration::zero() && !fault.has_value()) PauseReading(pause);
  }
  if (fault.has_value()) return Cut(*fault);
  is_busy_ = true;
  const absl::Status received = session_.Receive(passed);
  is_busy_ = false;
  if (!session_.is_in_header()) {
    header_since_ = {};
  } else if (header_since_ == Clock::time_point()) {
    header_since_ = now;
  }
  if (!received.ok()) {
    const bool is_flood = absl::IsResourceExhausted(received);
    return Cut({is_flood ? Refusal::kGrpcFlood : Refusal::kGrpcFrame,
                is_flood ? "frames whose answers are not read" : "the frames are no HTTP/2"});
  }
  Flush();
}

// Tells the client why, if that can be sent, and closes.
void Http2Connection::Cut(const Http2Guard::Fault& fault) {
  if (is_cut_ || is_closed_) return;
  handler_->OnRefused(OfHttp(fault.refusal));
  is_cut_ = true;
  if (write_in_flight_) return Close();
  outgoing_ = guard_.GoAway();
  written_ = 0;
  outgoing_.empty() ? Close() : Write();
}

void Http2Connection::Flush() {
  if (is_busy_ || is_closed_) return;
  if (!write_in_flight_ && !is_cut_) {
    std::string frames;
    is_busy_ = true;
    session_.Next(kOutgoingBytes, &frames);
    is_busy_ = false;
    outgoing_.clear();
    written_ = 0;
    guard_.FromServer(frames, Clock::now(), &outgoing_);
    if (!outgoing_.empty()) Write();
  }
  TellCalls();
  EndIfOver();
}

void Http2Connection::Write() {
  last_write_ = Clock::now();
  write_in_flight_ = true;
  stream_->WriteSome(boost::asio::buffer(outgoing_.data() + written_, outgoing_.size() - written_),
                     [self = shared_from_this()](const auto& error, size_t bytes) {
                       self->Guarded([&] { self->OnWritten(error, bytes); });
                     });
}

void Http2Connection::OnWritten(const boost::system::error_code& error, size_t bytes) {
  write_in_flight_ = false;
  if (is_closed_) return;
  if (error) return Close();
  written_ += bytes;
  if (written_ < outgoing_.size()) return Write();
  last_write_ = Clock::now();
  if (is_cut_) return Close();
  Flush();
}

// Tells calls that there is room. The bytes that they write then are sent by the Flush for which
// they ask.
void Http2Connection::TellCalls() {
  CountUnsent();
  const Clock::time_point now = Clock::now();
  std::vector<std::shared_ptr<Http2Call>> calls;
  calls.reserve(calls_.size());
  for (const auto& [id, call] : calls_) calls.push_back(call);
  for (const auto& call : calls) call->OnSent(now);
}

void Http2Connection::CountUnsent() {
  size_t now = is_closed_ ? 0 : outgoing_.size() - written_;
  if (!is_closed_) {
    for (const auto& [id, call] : calls_) now += call->unsent_bytes();
  }
  shared_.unsent->Add(static_cast<int64_t>(now) - static_cast<int64_t>(counted_unsent_));
  counted_unsent_ = now;
}

void Http2Connection::EndIfOver() {
  if (is_closed_ || linger_.has_begun() || write_in_flight_ || session_.wants_write()) return;
  if (session_.is_over() || (is_leaving_ && calls_.empty())) EndSending();
}

void Http2Connection::EndSending() {
  stream_->EndSending([self = shared_from_this()](const auto&, size_t) {});
  linger_.Begin(stream_->undelivered_bytes(), Clock::now());
}

void Http2Connection::Leave() {
  if (std::exchange(is_leaving_, true) || is_closed_) return;
  Guarded([&] {
    session_.GoAway();
    Flush();
  });
}

void Http2Connection::Drain() { Leave(); }

void Http2Connection::Close() {
  if (std::exchange(is_closed_, true)) return;
  is_busy_ = true;  // nothing is sent any more
  const auto calls = std::exchange(calls_, {});
  for (const auto& [id, call] : calls) {
    ended_calls_.push_back(call);
    call->OnClosed();
  }
  pause_.cancel();
  stream_->Close();
  CountUnsent();
  on_closed_(this);
}

void Http2Connection::OnTick(Clock::time_point now) {
  Guarded([&] {
    ended_calls_.clear();
    if (is_closed_) return;
    const ConnectionLimits& limits = *shared_.limits;
    if (linger_.has_begun()) {
      if (linger_.Update(stream_->undelivered_bytes(), now)) Close();
      return;
    }
    if (write_in_flight_ && now - last_write_ >= limits.write_timeout) return Close();
    const bool is_slow =
        header_since_ != Clock::time_point() && now - header_since_ >= limits.header_timeout;
    const bool has_begun = guard_.has_preface();
    if (is_slow || (!has_begun && now - idle_since_ >= limits.header_timeout)) {
      handler_->OnRefused(Refusal::kSlowHeader);
      return Close();
    }
    std::vector<std::shared_ptr<Http2Call>> calls;
    for (const auto& [id, call] : calls_) calls.push_back(call);
    for (const auto& call : calls) call->OnTick(now);
    if (is_closed_) return;
    if (calls_.empty() && now - idle_since_ >= limits.idle_timeout) Leave();
    Flush();
  });
}

Clock::time_point Http2Connection::idle_since() const {
  if (calls_.empty()) return idle_since_;
  Clock::time_point first = Clock::time_point::max();
  Clock::time_point last_byte;
  for (const auto& [id, call] : calls_) {
    const Clock::time_point since = call->body_since();
    if (since == Clock::time_point::max()) return since;
    first = std::min(first, since);
    last_byte = std::max(last_byte, call->last_body_byte());
  }
  return MayGiveWaySince(first, last_byte, *shared_.limits);
}

}  // namespace heddle::server
