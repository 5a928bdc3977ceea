// One TCP connection that speaks HTTP/2: its streams are requests to the same Handler as those of
// HTTP/1.1, with the same limits, each by itself.
//
// Bytes of clients pass a guard (http2_guard.h) and then the session (http2_session.h). Frames
// are made when the socket takes them, so that what is not sent yet belongs to the answer that it
// is of: a client that does not read a stream, or opens no window for it, is behind on that stream
// alone.
// Thread: all members are called on the I/O thread that owns the connection.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/http/connection.h"
#include "server/http/http2_call.h"
#include "server/http/http2_guard.h"
#include "server/http/http2_session.h"
#include "server/http/linger.h"
#include "server/http/stream.h"
#include "server/http/transport.h"

namespace heddle::server {

class Http2Connection final : public TransportConnection,
                              public Http2Events,
                              public std::enable_shared_from_this<Http2Connection> {
 public:
  // `stream`: after its handshake. `first_bytes`: what was read of it. The rest as for Connection.
  Http2Connection(std::unique_ptr<Stream> stream, std::string first_bytes, Handler* handler,
                  const Connection::Shared& shared, std::function<std::string()> new_request_id,
                  ClosedCallback on_closed);
  ~Http2Connection() override;

  // TransportConnection:
  void Start() override;
  void Leave() override;  // tells the client to open no more streams
  void Drain() override;
  void Close() override;
  void OnTick(Clock::time_point now) override;
  Clock::time_point idle_since() const override;

  // For its calls:
  Http2Session* session() { return &session_; }
  Handler* handler() { return handler_; }
  const Connection::Shared& shared() const { return shared_; }
  const ConnectionLimits& limits() const { return *shared_.limits; }
  uint64_t peer() const { return stream_->peer(); }
  Stream::Socket::executor_type executor() { return stream_->executor(); }
  std::string RequestIdOf(const HttpRequest& request) const;
  // Sends what the session has, soon.
  void Flush();
  // Runs `body` for a call that may be gone; an exception ends the connection.
  void Guarded(const std::function<void()>& body);

 private:
  // Http2Events:
  void OnHead(int32_t id, Http2Head head, bool ends) override;
  void OnBody(int32_t id, std::string_view bytes) override;
  void OnBodyEnd(int32_t id) override;
  void OnAnswered(int32_t id) override;
  void OnClosed(int32_t id, bool by_client) override;

  void Read();
  void PauseReading(Clock::duration pause);
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void Take(std::string_view bytes);
  void Cut(const Http2Guard::Fault& fault);
  void Write();
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void TellCalls();
  void CountUnsent();
  void EndIfOver();
  void EndSending();
  std::shared_ptr<Http2Call> Find(int32_t id) const;

  std::unique_ptr<Stream> stream_;
  Handler* const handler_;
  const Connection::Shared shared_;
  const std::function<std::string()> new_request_id_;
  const ClosedCallback on_closed_;
  Http2Guard guard_;
  Http2Session session_;
  std::unordered_map<int32_t, std::shared_ptr<Http2Call>> calls_;
  // Calls that have ended while they, or their exchanges, may be on the stack.
  std::vector<std::shared_ptr<Http2Call>> ended_calls_;

  std::string first_bytes_;
  std::string receive_buffer_;
  std::string outgoing_;  // being written; [0, written_) is sent
  size_t written_ = 0;
  bool write_in_flight_ = false;
  bool is_busy_ = false;  // within the session: what it has is sent afterwards
  bool is_cut_ = false;   // closes once what is in outgoing_ was sent
  bool is_leaving_ = false;
  bool is_paused_ = false;  // reads nothing until pause_ is over
  bool is_closed_ = false;
  size_t counted_unsent_ = 0;
  boost::asio::steady_timer pause_;
  Clock::time_point last_write_;
  Clock::time_point idle_since_;
  Linger linger_;
  Clock::time_point header_since_;  // since when a header has been arriving; the epoch: none does
};

}  // namespace heddle::server
