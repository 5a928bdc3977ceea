// The beginning of a connection: the TLS handshake, and then which version of HTTP the client
// speaks, by what it chose in the handshake (ALPN) or, without TLS, by its first bytes: HTTP/2 with
// prior knowledge begins with a preface that is no request of HTTP/1.1.
// Thread: all members are called on the I/O thread that owns the connection.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/exchange.h"
#include "server/http/stream.h"
#include "server/http/transport.h"

namespace heddle::server {

class FirstBytes final : public TransportConnection,
                         public std::enable_shared_from_this<FirstBytes> {
 public:
  // Makes the connection that goes on with a stream, from its first bytes on.
  using MakeNext = std::function<std::shared_ptr<TransportConnection>(
      std::unique_ptr<Stream> stream, bool is_http2, std::string first_bytes,
      ClosedCallback on_closed)>;

  // `handler` outlives the connection. `timeout`: of the handshake, and of the first bytes.
  FirstBytes(std::unique_ptr<Stream> stream, Handler* handler, Clock::duration timeout,
             MakeNext make_next, ClosedCallback on_closed);

  void Start() override;
  void Leave() override;
  void Drain() override;
  void Close() override;
  void OnTick(Clock::time_point now) override;
  Clock::time_point idle_since() const override;

 private:
  static constexpr size_t kMaxFirstBytes = size_t{4} << 10;

  void OnHandshake(const boost::system::error_code& error);
  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void GoOn(bool is_http2);
  template <typename Body>
  void Guarded(const Body& body);

  std::unique_ptr<Stream> stream_;  // null once handed over
  Handler* const handler_;
  const Clock::duration timeout_;
  const MakeNext make_next_;
  ClosedCallback on_closed_;
  std::shared_ptr<TransportConnection> next_;
  std::string bytes_;
  std::string buffer_;
  Clock::time_point began_;
  bool in_handshake_ = false;
  bool is_leaving_ = false;
  bool is_closed_ = false;
};

}  // namespace heddle::server
