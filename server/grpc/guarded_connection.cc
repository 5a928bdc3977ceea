#include "server/grpc/guarded_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace heddle::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kReceiveBytes = size_t{16} << 10;
// The receive buffer before the client has sent anything.
constexpr size_t kFirstReceiveBytes = 512;
// The kernel's buffer in each direction between us and gRPC; it doubles it for its own use.
constexpr int kPairBytes = 32 << 10;

}  // namespace

GuardedConnection::GuardedConnection(std::unique_ptr<Stream> stream, const Shared* shared,
                                     ClosedCallback on_closed)
    : stream_(std::move(stream)),
      server_(stream_->executor()),
      shared_(shared),
      on_closed_(std::move(on_closed)),
      guard_(shared->options.limits, shared->bodies,
             shared->resets->Owes(stream_->peer(), Clock::now())),
      pause_(stream_->executor()),
      linger_(shared->options.write_timeout) {}

template <typename Body>
void GuardedConnection::Guarded(const Body& body) {
  try {
    if (!closed_) body();
  } catch (...) {
    shared_->on_exception();
    shared_->on_refused(Refusal::kOutOfMemory);
    Close();
  }
}

void GuardedConnection::Start() {
  Guarded([&] { Begin(); });
}

void GuardedConnection::Begin() {
  began_ = last_activity_ = Clock::now();
  if (!stream_->needs_handshake()) {
    handshake_done_ = true;
    ReadClient();
    return;
  }
  stream_->Handshake([self = shared_from_this()](const error_code& error, size_t) {
    self->Guarded([&] {
      self->handshake_done_ = true;
      if (!error) {
        self->ReadClient();
        return;
      }
      self->shared_->on_handshake_failed(error.message());
      self->Close();
    });
  });
}

void GuardedConnection::Drain() {
  Guarded([&] {
    if (!connected_) Close();
  });
}

void GuardedConnection::Close() {
  if (std::exchange(closed_, true)) return;
  stream_->Close();
  error_code ignored;
  server_.close(ignored);
  pause_.cancel();
  on_closed_(this);
}

Clock::time_point GuardedConnection::idle_since() const {
  const bool is_idle = linger_.has_begun() || guard_.num_streams() == 0;
  return is_idle ? last_activity_ : Clock::time_point::max();
}

void GuardedConnection::OnTick(Clock::time_point now) {
  Guarded([&] {
    if (linger_.has_begun()) {
      if (linger_.Update(stream_->undelivered_bytes(), now)) Close();
      return;
    }
    const GuardOptions& options = shared_->options;
    if (!connected_ && now - began_ >= options.preface_timeout) {
      if (!handshake_done_) shared_->on_handshake_failed("it took too long");
      shared_->on_refused(Refusal::kSlowHeader);
      Close();
      return;
    }
    if (to_client_.writes && now - to_client_.last_write >= options.write_timeout) {
      Close();
      return;
    }
    guard_.OnTick(now);
    TakeFrames();
  });
}

bool GuardedConnection::ConnectServer() {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    shared_->log->Warning("cannot serve a gRPC client: no socket pair");
    return false;
  }
  for (const int end : pair) {
    setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kPairBytes, sizeof(kPairBytes));
  }
  error_code error;
  server_.assign(asio::local::stream_protocol(), pair[0], error);
  if (error) {
    close(pair[0]);
    close(pair[1]);
    return false;
  }
  connected_ = true;
  shared_->serve(pair[1], stream_->peer());
  return true;
}

// Reads no more from the client until gRPC has taken the earlier bytes.
void GuardedConnection::ReadClient() {
  const bool waits = to_server_.ended || is_cut_ || is_paused_ || !to_server_.is_empty();
  if (to_server_.reads || (waits && !linger_.has_begun())) return;
  to_server_.reads = true;
  to_server_.received.resize(connected_ ? kReceiveBytes : kFirstReceiveBytes);
  stream_->ReadSome(asio::buffer(to_server_.received),
                    [self = shared_from_this()](const error_code& error, size_t bytes) {
                      self->Guarded([&] { self->OnClientBytes(error, bytes); });
                    });
}

void GuardedConnection::PauseReading(Clock::duration pause) {
  is_paused_ = true;
  pause_.expires_after(pause);
  pause_.async_wait([self = shared_from_this()](const error_code&) {
    self->Guarded([&] {
      self->is_paused_ = false;
      self->ReadClient();
    });
  });
}

void GuardedConnection::OnClientBytes(const error_code& error, size_t bytes) {
  to_server_.reads = false;
  if (error) {
    // HTTP/2 has its own way to end a connection: a client that ends the byte stream is gone.
    Close();
    return;
  }
  if (is_cut_) return;
  if (linger_.has_begun()) {
    linger_.Drop(bytes) ? ReadClient() : Close();
    return;
  }
  last_activity_ = Clock::now();
  const std::optional<Http2Guard::Fault> fault = guard_.FromClient(
      std::string_view(to_server_.received).substr(0, bytes), last_activity_, &to_server_.waiting);
  CountRefused();
  Clock::duration pause = Clock::duration::zero();
  if (const int resets = guard_.TakeResets(); resets > 0) {
    pause = shared_->resets->Spend(stream_->peer(), resets, last_activity_);
  }
  if (fault) {
    Cut(*fault);
    return;
  }
  if (guard_.has_preface() && !connected_) {
    if (!ConnectServer()) {
      Close();
      return;
    }
    ReadServer();
  }
  if (pause > Clock::duration::zero()) PauseReading(pause);
  TakeFrames();
  ReadClient();
}

void GuardedConnection::FlushServer() {
  Way& way = to_server_;
  if (!connected_ || way.writes || way.waiting.empty()) return;
  way.in_flight.clear();
  std::swap(way.in_flight, way.waiting);
  way.written = 0;
  way.writes = true;
  asio::async_write(server_, asio::buffer(way.in_flight),
                    [self = shared_from_this()](const error_code& error, size_t) {
                      self->Guarded([&] {
                        self->to_server_.writes = false;
                        // gRPC has closed its end; its earlier bytes are still sent.
                        if (error) self->to_server_.ended = true;
                        if (error) return;
                        self->FlushServer();
                        self->ReadClient();
                      });
                    });
}

void GuardedConnection::ReadServer() {
  if (to_client_.reads || to_client_.ended || !to_client_.is_empty()) return;
  to_client_.reads = true;
  to_client_.received.resize(kReceiveBytes);
  server_.async_read_some(asio::buffer(to_client_.received),
                          [self = shared_from_this()](const error_code& error, size_t bytes) {
                            self->Guarded([&] { self->OnServerBytes(error, bytes); });
                          });
}

void GuardedConnection::OnServerBytes(const error_code& error, size_t bytes) {
  to_client_.reads = false;
  if (is_cut_) return;
  if (error) {
    to_client_.ended = true;
    if (to_client_.is_empty()) EndClient();
    return;
  }
  last_activity_ = Clock::now();
  guard_.FromServer(std::string_view(to_client_.received).substr(0, bytes), last_activity_,
                    &to_client_.waiting);
  TakeFrames();
  ReadServer();
}

void GuardedConnection::FlushClient() {
  Way& way = to_client_;
  if (way.writes) return;
  if (way.written == way.in_flight.size()) {
    if (way.waiting.empty()) return;
    way.in_flight.clear();
    std::swap(way.in_flight, way.waiting);
    way.written = 0;
  }
  way.writes = true;
  way.last_write = Clock::now();
  stream_->WriteSome(
      asio::buffer(way.in_flight.data() + way.written, way.in_flight.size() - way.written),
      [self = shared_from_this()](const error_code& error, size_t bytes) {
        self->Guarded([&] {
          Way& done = self->to_client_;
          done.writes = false;
          done.written += bytes;
          if (error) {
            self->Close();
            return;
          }
          self->FlushClient();
          if (!done.is_empty()) return;
          if (self->is_cut_) {
            self->Close();
          } else if (done.ended) {
            self->EndClient();
          } else {
            self->ReadServer();
          }
        });
      });
}

void GuardedConnection::TakeFrames() {
  guard_.TakeFrames(&to_client_.waiting, &to_server_.waiting);
  FlushServer();
  FlushClient();
}

// gRPC has ended, and the kernel has all that it sent.
void GuardedConnection::EndClient() {
  if (linger_.has_begun()) return;
  stream_->EndSending([self = shared_from_this()](const error_code&, size_t) {});
  linger_.Begin(stream_->undelivered_bytes(), Clock::now());
  ReadClient();
}

// Tells gRPC at once, so that it frees its state for the client.
void GuardedConnection::Cut(const Http2Guard::Fault& fault) {
  shared_->on_refused(fault.refusal);
  shared_->log->Debug("a gRPC client was cut off", {{"reason", fault.what}});
  is_cut_ = true;
  error_code ignored;
  server_.close(ignored);
  to_client_.waiting += guard_.GoAway();
  FlushClient();
  if (to_client_.is_empty()) Close();
}

void GuardedConnection::CountRefused() {
  for (int i = guard_.TakeRefusedMessages(); i > 0; --i) shared_->on_refused(Refusal::kGrpcMemory);
}

}  // namespace heddle::server
