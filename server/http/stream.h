// The bytes of one connection, plain or inside TLS, which Connection reads and writes.
// At most one ReadSome and one WriteSome are pending at a time, concurrently. A Done is called on
// the I/O thread, never from within the call that it was given to, and exactly once; after Close it
// gets an error. The owner keeps the stream until all of them have been called.
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

  // Whether Handshake must succeed before anything is read or written.
  virtual bool needs_handshake() const = 0;
  virtual void Handshake(Done done) = 0;
  // After a handshake: whether the client chose HTTP/2 in it (ALPN).
  virtual bool chose_http2() const = 0;

  virtual void ReadSome(boost::asio::mutable_buffer buffer, Done done) = 0;
  virtual void WriteSome(boost::asio::const_buffer buffer, Done done) = 0;

  // Tells the peer that no more data will come; reading continues. `done` is called when the peer
  // has done the same, or at once.
  virtual void EndSending(Done done) = 0;
  // Bytes on their way: written, and not confirmed by the client's system yet. 0 after Close.
  virtual size_t undelivered_bytes() = 0;
  virtual void Close() = 0;

  // Stands for the client's address (peer.h); 0: unknown.
  virtual uint64_t peer() const = 0;

  // The executor of its I/O thread. Any thread may post tasks to it while the transport lives, also
  // after the stream.
  virtual Socket::executor_type executor() = 0;

  // After a failed Handshake: whether the client speaks plain HTTP, and could read such an answer.
  virtual bool client_is_plain() const = 0;
  // Sends without TLS, as much as is possible without waiting.
  virtual void WritePlain(const std::string& bytes) = 0;
};

std::unique_ptr<Stream> MakePlainStream(Stream::Socket socket);
std::unique_ptr<Stream> MakeTlsStream(Stream::Socket socket,
                                      std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace heddle::server
