// A blocking HTTPS client on OpenSSL alone. Every wait ends after ten seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tests/support/test_pki.h"

struct ssl_st;
struct ssl_ctx_st;

namespace heddle::test {

class TlsClient {
 public:
  struct Options {
    const Certified* trusted = nullptr;   // authority of the server's certificate
    const Certified* identity = nullptr;  // what the client shows; nullptr: nothing
    int max_version = 0;                  // TLS1_1_VERSION...; 0: any
    std::string protocols;                // ALPN in wire format
  };

  TlsClient(uint16_t port, const Options& options);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  std::string version() const;
  std::string protocol() const;  // ALPN's choice
  std::string peer_name() const;

  bool Send(std::string_view bytes);
  // All bytes up to and including `text`, or those before the end.
  std::string ReadUntil(std::string_view text);
  bool ReadsEnd();  // close_notify, and nothing before it

  // The bytes of an answer to a GET or other request with Content-Length; "" for none.
  std::string Ask(std::string_view request);

 private:
  bool Fill();

  int fd_ = -1;
  bool connected_ = false;
  int last_error_ = 0;
  std::shared_ptr<ssl_ctx_st> context_;
  std::shared_ptr<ssl_st> ssl_;
  std::string buffer_;
};

}  // namespace heddle::test
