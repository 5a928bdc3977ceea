// What a server needs to speak TLS: its certificate, its key, and, for mutual TLS, the authorities
// whose certificates clients must show. Loaded from PEM files, and again when asked to, so that a
// renewed certificate needs no restart.
//
// TLS 1.2 and 1.3, cipher suites as OpenSSL orders them for its security level 2, ALPN "http/1.1".
// Thread-safety: current() and Reload() from any thread; a connection keeps the context that it
// began with.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"

namespace boost::asio::ssl {
class context;
}

namespace heddle::server {

struct TlsOptions {
  std::string cert_file;       // PEM: the server's certificate, then those between it and the root
  std::string key_file;        // PEM, without a passphrase
  std::string client_ca_file;  // PEM; not empty: clients must have a certificate signed by one

  bool enabled() const { return !cert_file.empty(); }
};

class TlsContext {
 public:
  using Warn = std::function<void(const std::string&)>;

  // INVALID_ARGUMENT names the option, the file and what is wrong with it: not there, not PEM, a
  // key that is encrypted or belongs to another certificate. `warn` is told of what works and
  // should not (a certificate that has expired, or is not valid yet); also by Reload.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(TlsOptions options, Warn warn);

  // Reads the files again. On an error the old context stays.
  absl::Status Reload();

  std::shared_ptr<boost::asio::ssl::context> current() const;
  const TlsOptions& options() const { return options_; }

 private:
  TlsContext(TlsOptions options, Warn warn);

  const TlsOptions options_;
  const Warn warn_;
  mutable std::mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> current_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
