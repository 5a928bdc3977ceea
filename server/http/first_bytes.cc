#include "server/http/first_bytes.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

namespace heddle::server {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

}  // namespace

FirstBytes::FirstBytes(std::unique_ptr<Stream> stream, Handler* handler, Clock::duration timeout,
                       MakeNext make_next, ClosedCallback on_closed)
    : stream_(std::move(stream)),
      handler_(handler),
      timeout_(timeout),
      make_next_(std::move(make_next)),
      on_closed_(std::move(on_closed)) {}

template <typename Body>
void FirstBytes::Guarded(const Body& body) {
  try {
    body();
  } catch (...) {
    handler_->OnException("connection", "").IgnoreError();
    handler_->OnRefused(Refusal::kOutOfMemory);
    Close();
  }
}

void FirstBytes::Start() {
  began_ = Clock::now();
  Guarded([&] {
    if (!stream_->needs_handshake()) return Read();
    in_handshake_ = true;
    stream_->Handshake([self = shared_from_this()](const auto& error, size_t) {
      self->Guarded([&] { self->OnHandshake(error); });
    });
  });
}

void FirstBytes::OnHandshake(const boost::system::error_code& error) {
  if (is_closed_) return;
  in_handshake_ = false;
  if (!error) {
    is_leaving_ ? Close() : GoOn(stream_->chose_http2());
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

void FirstBytes::Read() {
  buffer_.resize(kMaxFirstBytes);
  stream_->ReadSome(boost::asio::buffer(buffer_),
                    [self = shared_from_this()](const auto& error, size_t bytes) {
                      self->Guarded([&] { self->OnRead(error, bytes); });
                    });
}

void FirstBytes::OnRead(const boost::system::error_code& error, size_t bytes) {
  if (is_closed_) return;
  if (error) return Close();
  bytes_.append(buffer_, 0, bytes);
  const size_t compared = std::min(bytes_.size(), kPreface.size());
  const bool may_be_http2 =
      std::string_view(bytes_).substr(0, compared) == kPreface.substr(0, compared);
  // The first four letters are those of no method (RFC 9113, section 3.4).
  if (!may_be_http2 || compared == kPreface.size()) return GoOn(may_be_http2);
  Read();
}

void FirstBytes::GoOn(bool is_http2) {
  buffer_ = std::string();
  next_ = make_next_(std::move(stream_), is_http2, std::move(bytes_), [this](TransportConnection*) {
    const auto self = shared_from_this();  // its owner forgets it now
    is_closed_ = true;
    on_closed_(this);
  });
  // HTTP/1.1 is told before its first request is answered; of HTTP/2, what has come is answered.
  if (is_leaving_ && !is_http2) next_->Leave();
  next_->Start();
  if (is_leaving_ && is_http2) next_->Leave();
}

void FirstBytes::Leave() {
  is_leaving_ = true;
  if (next_ != nullptr) next_->Leave();
}

void FirstBytes::Drain() {
  is_leaving_ = true;
  if (next_ != nullptr) {
    next_->Drain();
  } else if (!in_handshake_) {
    Close();
  }
}

void FirstBytes::Close() {
  if (next_ != nullptr) return next_->Close();
  if (std::exchange(is_closed_, true)) return;
  if (stream_ != nullptr) stream_->Close();
  on_closed_(this);
}

void FirstBytes::OnTick(Clock::time_point now) {
  if (next_ != nullptr) return next_->OnTick(now);
  if (is_closed_ || now - began_ < timeout_) return;
  if (in_handshake_) handler_->OnHandshakeFailed("it took too long");
  Close();
}

Clock::time_point FirstBytes::idle_since() const {
  return next_ != nullptr ? next_->idle_since() : began_;
}

}  // namespace heddle::server
