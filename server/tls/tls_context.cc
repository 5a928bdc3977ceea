#include "server/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"

namespace heddle::server {
namespace {

namespace ssl = boost::asio::ssl;
using base::StrCat;

absl::Status Fault(std::string_view option, const std::string& file, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(option, " ", file, ": ", what));
}

// The reason of the newest OpenSSL error on this thread; clears them all.
std::string OpenSslReason() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

absl::Status CheckReadable(std::string_view option, const std::string& file) {
  if (std::ifstream(file).good()) return absl::OkStatus();
  return Fault(option, file, "there is no such file, or it cannot be read");
}

// Without it, OpenSSL would ask at the terminal for the passphrase of an encrypted key.
int NoPassphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

absl::Status LoadCertificate(SSL_CTX* context, const TlsOptions& options) {
  const std::string& file = options.cert_file;
  HEDDLE_RETURN_IF_ERROR(CheckReadable(options.names.cert, file));
  if (SSL_CTX_use_certificate_chain_file(context, file.c_str()) == 1) return absl::OkStatus();
  return Fault(options.names.cert, file,
               StrCat("not a certificate in PEM format (", OpenSslReason(), ")"));
}

absl::Status LoadKey(SSL_CTX* context, const TlsOptions& options) {
  const std::string& file = options.key_file;
  HEDDLE_RETURN_IF_ERROR(CheckReadable(options.names.key, file));
  bool asked = false;
  SSL_CTX_set_default_passwd_cb(context, &NoPassphrase);
  SSL_CTX_set_default_passwd_cb_userdata(context, &asked);
  const bool loaded = SSL_CTX_use_PrivateKey_file(context, file.c_str(), SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  const bool fits = loaded && SSL_CTX_check_private_key(context) == 1;
  if (fits) return absl::OkStatus();
  if (asked) return Fault(options.names.key, file, "the key has a passphrase; give one without");
  // Either of the two calls refuses a key of another kind or pair.
  const bool mismatch = ERR_GET_LIB(ERR_peek_last_error()) == ERR_LIB_X509;
  const std::string reason = OpenSslReason();
  if (mismatch) {
    return Fault(options.names.key, file,
                 StrCat("does not belong to the certificate in ", options.cert_file));
  }
  return Fault(options.names.key, file, StrCat("not a private key in PEM format (", reason, ")"));
}

absl::Status LoadClientAuthorities(SSL_CTX* context, const TlsOptions& options) {
  const std::string& file = options.client_ca_file;
  if (file.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckReadable(options.names.ca, file));
  STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(file.c_str());
  if (names == nullptr || SSL_CTX_load_verify_file(context, file.c_str()) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return Fault(options.names.ca, file,
                 StrCat("not certificates in PEM format (", OpenSslReason(), ")"));
  }
  SSL_CTX_set_client_CA_list(context, names);  // takes ownership
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Without one, OpenSSL refuses to resume sessions of clients that showed a certificate.
  constexpr std::string_view kSessions = "heddle";
  SSL_CTX_set_session_id_context(context, reinterpret_cast<const unsigned char*>(kSessions.data()),
                                 kSessions.size());
  return absl::OkStatus();
}

// `offer`: a TlsProtocol's name, preceded by its length.
int SelectProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void* offer) {
  const std::string_view ours(static_cast<const char*>(offer));
  unsigned char* match = nullptr;
  const int found = SSL_select_next_proto(
      &match, chosen_bytes, reinterpret_cast<const unsigned char*>(ours.data()),
      static_cast<unsigned int>(ours.size()), offered, offered_bytes);
  *chosen = match;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

char* OfferOf(TlsProtocol protocol) {
  static char http[] = "\x02h2\x08http/1.1";
  static char http2[] = "\x02h2";
  return protocol == TlsProtocol::kHttp2 ? http2 : http;
}

// The files' times and sizes; an unreadable file counts as a state of its own.
std::string StampOf(const TlsOptions& options) {
  std::string stamp;
  for (const std::string& file : {options.cert_file, options.key_file, options.client_ca_file}) {
    if (file.empty()) continue;
    std::error_code error;
    const auto written = std::filesystem::last_write_time(file, error);
    const auto bytes = std::filesystem::file_size(file, error);
    stamp += error ? "?" : StrCat(int64_t{written.time_since_epoch().count()}, " ", bytes, ",");
  }
  return stamp;
}

void CheckDates(SSL_CTX* context, const TlsOptions& options, const TlsContext::Warn& warn) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    warn(StrCat("the certificate in ", options.cert_file,
                " has expired: clients that check it will refuse it"));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    warn(StrCat("the certificate in ", options.cert_file,
                " is not valid yet: clients that check it will refuse it"));
  }
}

absl::StatusOr<std::shared_ptr<ssl::context>> MakeContext(const TlsOptions& options) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  // A renegotiation costs the server more than the client, so it is disabled.
  SSL_CTX_set_options(
      native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                               SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(native, &SelectProtocol, OfferOf(options.protocol));
  ERR_clear_error();
  HEDDLE_RETURN_IF_ERROR(LoadCertificate(native, options));
  HEDDLE_RETURN_IF_ERROR(LoadKey(native, options));
  HEDDLE_RETURN_IF_ERROR(LoadClientAuthorities(native, options));
  return context;
}

}  // namespace

TlsContext::TlsContext(TlsOptions options, Warn warn)
    : options_(std::move(options)), warn_(std::move(warn)) {}

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(TlsOptions options, Warn warn) {
  std::unique_ptr<TlsContext> tls(new TlsContext(std::move(options), std::move(warn)));
  HEDDLE_RETURN_IF_ERROR(tls->Reload());
  return tls;
}

absl::StatusOr<bool> TlsContext::ReloadIfChanged() {
  if (StampOf(options_) == stamp_) return false;
  HEDDLE_RETURN_IF_ERROR(Reload());
  return true;
}

absl::Status TlsContext::Reload() {
  stamp_ = StampOf(options_);
  HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<ssl::context> fresh, MakeContext(options_));
  CheckDates(fresh->native_handle(), options_, warn_);
  std::lock_guard lock(mutex_);
  current_ = std::move(fresh);
  return absl::OkStatus();
}

std::shared_ptr<ssl::context> TlsContext::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

}  // namespace heddle::server
