// TLS of the calls between a head and its ranks. It is always mutual: each end shows a certificate
// that one of the authorities both are given has signed, and the head's has to be made out to the
// host that ranks join. What ranks send each other by UCX (rank_mesh.h) it does not cover.
//
// Thread-safety: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace heddle::server {

// Files in PEM format: all, or none for calls without TLS.
struct RankTls {
  std::string cert_file;  // of this process, with intermediate ones
  std::string key_file;   // without a passphrase
  std::string ca_file;    // authorities of all ranks

  bool enabled() const { return !cert_file.empty(); }
};

// INVALID_ARGUMENT names the option and the file that cannot be used, and why. `warn` is told of
// what works, but not with everybody: a certificate that has expired.
absl::Status CheckRankTls(const RankTls& tls, const std::function<void(const std::string&)>& warn);

// For the head's port: renewed files are read within seconds.
std::shared_ptr<grpc::ServerCredentials> HeadCredentials(const RankTls& tls);
// For one call of a rank: the files as they are now. INVALID_ARGUMENT: one cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> RankCredentials(const RankTls& tls);

}  // namespace heddle::server
