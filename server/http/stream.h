// The bytes of one connection, plain or inside TLS: what Connection reads and writes.
//
// At most one ReadSome and one WriteSome are under way at a time, each beside the other. A Done is
// called on the I/O thread, never from within the call that it was given to, and exactly once;
// after Close with an error. Whoever owns the stream keeps it until all of them have been called.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace boost::asio::ssl {
class context;
}

namespace heddle::server {

class Stream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Done = std::function<void(const boost::system::error_code&, size_t)>;

  virtual ~Stream() = default;

  // Whether Handshake must have succeeded before anything is read or written.
  virtual bool needs_handshake() const = 0;
  virtual void Handshake(Done done) = 0;

  virtual void ReadSome(boost::asio::mutable_buffer buffer, Done done) = 0;
  virtual void WriteSome(boost::asio::const_buffer buffer, Done done) = 0;

  // Tells the peer that nothing more is coming; reading goes on. `done` when the peer has said the
  // same, or at once.
  virtual void EndSending(Done done) = 0;
  virtual void Close() = 0;

  // After a failed Handshake: the client speaks plain HTTP, and could read an answer in it.
  virtual bool client_is_plain() const = 0;
  // Sends without TLS, as far as it goes without waiting.
  virtual void WritePlain(const std::string& bytes) = 0;
};

std::unique_ptr<Stream> MakePlainStream(Stream::Socket socket);
std::unique_ptr<Stream> MakeTlsStream(Stream::Socket socket,
                                      std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace heddle::server
