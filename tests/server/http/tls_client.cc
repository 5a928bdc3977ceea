#include "tests/server/http/tls_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace heddle::test {
namespace {

std::shared_ptr<BIO> Memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

void Trust(SSL_CTX* context, const Certified& authority) {
  const std::string pem = authority.CertPem();
  X509* cert = PEM_read_bio_X509(Memory(pem).get(), nullptr, nullptr, nullptr);
  HEDDLE_CHECK(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), cert) == 1, "trust");
  X509_free(cert);
}

void Identify(SSL_CTX* context, const Certified& identity) {
  const std::string cert_pem = identity.CertPem();
  const std::string key_pem = identity.KeyPem();
  X509* cert = PEM_read_bio_X509(Memory(cert_pem).get(), nullptr, nullptr, nullptr);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(Memory(key_pem).get(), nullptr, nullptr, nullptr);
  HEDDLE_CHECK(SSL_CTX_use_certificate(context, cert) == 1, "certificate");
  HEDDLE_CHECK(SSL_CTX_use_PrivateKey(context, key) == 1, "key");
  X509_free(cert);
  EVP_PKEY_free(key);
}

int Connect(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  timeval timeout{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  HEDDLE_CHECK(connected == 0, "connect to the server under test");
  return fd;
}

}  // namespace

TlsClient::TlsClient(uint16_t port, const Options& options)
    : fd_(Connect(port)), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
  SSL_CTX* context = context_.get();
  if (options.trusted != nullptr) {
    Trust(context, *options.trusted);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
  if (options.identity != nullptr) Identify(context, *options.identity);
  if (options.max_version != 0) {
    SSL_CTX_set_security_level(context, 0);  // old versions need it
    SSL_CTX_set_max_proto_version(context, options.max_version);
  }
  ssl_.reset(SSL_new(context), SSL_free);
  SSL_set1_host(ssl_.get(), "localhost");
  if (!options.protocols.empty()) {
    SSL_set_alpn_protos(ssl_.get(),
                        reinterpret_cast<const unsigned char*>(options.protocols.data()),
                        static_cast<unsigned>(options.protocols.size()));
  }
  SSL_set_fd(ssl_.get(), fd_);
  connected_ = SSL_connect(ssl_.get()) == 1;
}

TlsClient::~TlsClient() {
  ssl_.reset();
  ::close(fd_);
}

std::string TlsClient::version() const { return SSL_get_version(ssl_.get()); }

std::string TlsClient::protocol() const {
  const unsigned char* name = nullptr;
  unsigned bytes = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &bytes);
  return {reinterpret_cast<const char*>(name), bytes};
}

std::string TlsClient::peer_name() const {
  char name[128] = "";
  const X509* cert = SSL_get0_peer_certificate(ssl_.get());
  X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof(name));
  return name;
}

bool TlsClient::Send(std::string_view bytes) {
  return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
}

bool TlsClient::Fill() {
  char bytes[16384];
  const int received = SSL_read(ssl_.get(), bytes, sizeof(bytes));
  last_error_ = SSL_get_error(ssl_.get(), received);
  if (received <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(received));
  return true;
}

std::string TlsClient::ReadUntil(std::string_view text) {
  size_t at = 0;
  while ((at = buffer_.find(text)) == std::string::npos) {
    if (!Fill()) return std::exchange(buffer_, "");
  }
  std::string result = buffer_.substr(0, at + text.size());
  buffer_.erase(0, at + text.size());
  return result;
}

bool TlsClient::ReadsEnd() {
  return buffer_.empty() && !Fill() && last_error_ == SSL_ERROR_ZERO_RETURN;
}

std::string TlsClient::Ask(std::string_view request) {
  if (!Send(request)) return "";
  std::string answer = ReadUntil("\r\n\r\n");
  const size_t length = answer.find("Content-Length: ");
  if (length == std::string::npos) return answer;
  const size_t bytes = std::strtoul(answer.c_str() + length + 16, nullptr, 10);
  while (buffer_.size() < bytes) {
    if (!Fill()) return "";
  }
  answer += buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return answer;
}

}  // namespace heddle::test
