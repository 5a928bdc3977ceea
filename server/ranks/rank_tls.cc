#include "server/ranks/rank_tls.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "server/tls/tls_context.h"

namespace heddle::server {
namespace {

// Between two looks at the head's files.
constexpr unsigned kRefreshSeconds = 10;

absl::StatusOr<std::string> TextOf(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.good() && !text.empty()) return text;
  return absl::InvalidArgumentError(base::StrCat(file, " is empty, or cannot be read"));
}

}  // namespace

absl::Status CheckRankTls(const RankTls& tls, const std::function<void(const std::string&)>& warn) {
  if (!tls.enabled()) return absl::OkStatus();
  TlsOptions options{tls.cert_file, tls.key_file, tls.ca_file};
  options.names = {"--rank-tls-cert", "--rank-tls-key", "--rank-tls-ca"};
  return TlsContext::Load(std::move(options), warn).status();
}

std::shared_ptr<grpc::ServerCredentials> HeadCredentials(const RankTls& tls) {
  if (!tls.enabled()) return grpc::InsecureServerCredentials();
  namespace experimental = grpc::experimental;
  experimental::TlsServerCredentialsOptions options(
      std::make_shared<experimental::FileWatcherCertificateProvider>(tls.key_file, tls.cert_file,
                                                                     tls.ca_file, kRefreshSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> RankCredentials(const RankTls& tls) {
  if (!tls.enabled()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  HEDDLE_ASSIGN_OR_RETURN(options.pem_root_certs, TextOf(tls.ca_file));
  HEDDLE_ASSIGN_OR_RETURN(options.pem_cert_chain, TextOf(tls.cert_file));
  HEDDLE_ASSIGN_OR_RETURN(options.pem_private_key, TextOf(tls.key_file));
  return grpc::SslCredentials(options);
}

}  // namespace heddle::server
