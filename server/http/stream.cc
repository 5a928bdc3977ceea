#include "server/http/stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/ioctl.h>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

#include "server/http/peer.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

uint64_t PeerOf(const Stream::Socket& socket) {
  error_code error;
  const Stream::Socket::endpoint_type endpoint = socket.remote_endpoint(error);
  return error ? 0 : PeerNumber(endpoint.address());
}

// The end of sending counts as one byte.
size_t UndeliveredBytes(Stream::Socket::native_handle_type socket) {
  int bytes = 0;
  return ioctl(socket, TIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

class PlainStream final : public Stream {
 public:
  explicit PlainStream(Socket socket) : socket_(std::move(socket)), peer_(PeerOf(socket_)) {}

  bool needs_handshake() const override { return false; }
  bool chose_http2() const override { return false; }
  void Handshake(Done done) override { Succeed(std::move(done)); }
  void ReadSome(asio::mutable_buffer buffer, Done done) override {
    socket_.async_read_some(buffer, std::move(done));
  }
  void WriteSome(asio::const_buffer buffer, Done done) override {
    socket_.async_write_some(buffer, std::move(done));
  }
  void EndSending(Done done) override {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    Succeed(std::move(done));
  }
  size_t undelivered_bytes() override { return UndeliveredBytes(socket_.native_handle()); }
  void Close() override {
    error_code ignored;
    socket_.close(ignored);
  }
  uint64_t peer() const override { return peer_; }
  Socket::executor_type executor() override { return socket_.get_executor(); }
  bool client_is_plain() const override { return true; }
  void WritePlain(const std::string& bytes) override {
    error_code ignored;
    socket_.non_blocking(true, ignored);
    socket_.write_some(asio::buffer(bytes), ignored);
  }

 private:
  void Succeed(Done done) {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done({}, 0); });
  }

  Socket socket_;
  const uint64_t peer_;
};

class TlsStream final : public Stream {
 public:
  TlsStream(Socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)),
        stream_(std::move(socket), *context_),
        peer_(PeerOf(stream_.next_layer())) {}

  bool needs_handshake() const override { return true; }
  bool chose_http2() const override {
    const unsigned char* chosen = nullptr;
    unsigned int bytes = 0;
    auto* native = const_cast<TlsStream*>(this)->stream_.native_handle();
    SSL_get0_alpn_selected(native, &chosen, &bytes);
    return std::string_view(reinterpret_cast<const char*>(chosen), bytes) == "h2";
  }
  void Handshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [this, done = std::move(done)](const error_code& error) {
                              client_is_plain_ = IsPlainHttp(error);
                              done(error, 0);
                            });
  }
  void ReadSome(asio::mutable_buffer buffer, Done done) override {
    stream_.async_read_some(buffer, std::move(done));
  }
  void WriteSome(asio::const_buffer buffer, Done done) override {
    stream_.async_write_some(buffer, std::move(done));
  }
  void EndSending(Done done) override {
    stream_.async_shutdown([done = std::move(done)](const error_code& error) { done(error, 0); });
  }
  size_t undelivered_bytes() override {
    return UndeliveredBytes(stream_.lowest_layer().native_handle());
  }
  void Close() override {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }
  uint64_t peer() const override { return peer_; }
  Socket::executor_type executor() override { return stream_.next_layer().get_executor(); }
  bool client_is_plain() const override { return client_is_plain_; }
  void WritePlain(const std::string& bytes) override {
    error_code ignored;
    stream_.next_layer().non_blocking(true, ignored);
    stream_.next_layer().write_some(asio::buffer(bytes), ignored);
    stream_.next_layer().shutdown(Socket::shutdown_send, ignored);
  }

 private:
  // OpenSSL recognises the first letters of an HTTP request where a record should begin.
  static bool IsPlainHttp(const error_code& error) {
    return error.category() == asio::error::get_ssl_category() &&
           ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
  }

  std::shared_ptr<asio::ssl::context> context_;  // outlives stream_
  asio::ssl::stream<Socket> stream_;
  const uint64_t peer_;
  bool client_is_plain_ = false;
};

}  // namespace

std::unique_ptr<Stream> MakePlainStream(Stream::Socket socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

std::unique_ptr<Stream> MakeTlsStream(Stream::Socket socket,
                                      std::shared_ptr<asio::ssl::context> context) {
  return std::make_unique<TlsStream>(std::move(socket), std::move(context));
}

}  // namespace heddle::server
