// A server's TLS configuration: its certificate, its key and, for mutual TLS, the authorities that
// must have signed clients' certificates. It is loaded from PEM files, and again on request, so
// that a renewed certificate needs no restart.
// TLS 1.2 and 1.3, cipher suites as OpenSSL orders them for its security level 2, ALPN "http/1.1"
// or "h2".
// Thread-safety: current() may be called from any thread, the others from one at a time; a
// connection keeps the context that it began with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace boost::asio::ssl {
class context;
}

namespace heddle::server {

enum class TlsProtocol : uint8_t { kHttp, kHttp2 };  // offered by ALPN

// The options that name the files, for errors.
struct TlsOptionNames {
  std::string_view cert = "--tls-cert";
  std::string_view key = "--tls-key";
  std::string_view ca = "--tls-client-ca";
};

struct TlsOptions {
  std::string cert_file;       // PEM: the server's certificate and intermediate ones
  std::string key_file;        // PEM, without a passphrase
  std::string client_ca_file;  // PEM; not empty: one of these must have signed clients' ones

  TlsProtocol protocol = TlsProtocol::kHttp;
  TlsOptionNames names;

  bool enabled() const { return !cert_file.empty(); }
};

class TlsContext {
 public:
  using Warn = std::function<void(const std::string&)>;

  // INVALID_ARGUMENT names the option, the file and what is wrong with it: missing, not PEM, or a
  // key that is encrypted or belongs to another certificate. `warn` is told of what works but
  // should not be used (a certificate that has expired, or is not valid yet); also by Reload.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(TlsOptions options, Warn warn);

  // Reads the files again. On an error the old context stays.
  absl::Status Reload();

  // Does the same if any of the files has changed since they were last read; returns whether one
  // had. Call it every few seconds; an error is reported once for each change.
  absl::StatusOr<bool> ReloadIfChanged();

  std::shared_ptr<boost::asio::ssl::context> current() const;
  const TlsOptions& options() const { return options_; }

 private:
  TlsContext(TlsOptions options, Warn warn);

  const TlsOptions options_;
  const Warn warn_;
  std::string stamp_;  // the files' state when last read
  mutable std::mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> current_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
