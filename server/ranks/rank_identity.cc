#include "server/ranks/rank_identity.h"

#include "absl/strings/numbers.h"
#include "base/message.h"

namespace heddle::server {
namespace {

bool IsSameToken(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size() && !a.empty(); ++i) {
    difference |= static_cast<unsigned char>(a[i % a.size()]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

absl::Status Differs(const char* what, const std::string& head, const std::string& other) {
  constexpr size_t kMostShown = 60;
  return absl::FailedPreconditionError(base::StrCat("the ", what, " differs: the head has ",
                                                    base::Quote(head), ", the joining rank ",
                                                    base::Quote(other.substr(0, kMostShown))));
}

}  // namespace

absl::Status CheckIdentity(const RankIdentity& head, const RankIdentity& other) {
  if (!IsSameToken(head.token, other.token)) {
    return absl::PermissionDeniedError("the token differs (--rank-token-file)");
  }
  if (head.build != other.build) return Differs("build", head.build, other.build);
  if (head.model_digest != other.model_digest) {
    return Differs("model", std::to_string(head.model_digest), std::to_string(other.model_digest));
  }
  if (head.isa != other.isa) {
    return Differs("instruction set (--isa, --device)", head.isa, other.isa);
  }
  if (head.ucx != other.ucx) return Differs("version of UCX", head.ucx, other.ucx);
  return absl::OkStatus();
}

std::string HostOfPeer(std::string_view peer) {
  if (peer.starts_with("inproc")) return "this process";
  const size_t scheme = peer.find(':');
  const size_t port = peer.rfind(':');
  if (scheme == std::string_view::npos || port <= scheme) return std::string(peer);
  return std::string(peer.substr(scheme + 1, port - scheme - 1));
}

absl::StatusOr<RankAddress> ParseRankAddress(std::string_view option, std::string_view text) {
  RankAddress address;
  uint32_t port = 0;
  const size_t colon = text.rfind(':');
  const bool has_bare_ipv6 = !text.starts_with('[') && text.find(':') != colon;
  if (colon != std::string_view::npos && colon > 0 && !has_bare_ipv6 &&
      absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) && port <= 65535) {
    address.host = std::string(text.substr(0, colon));
    address.port = static_cast<uint16_t>(port);
    return address;
  }
  return absl::InvalidArgumentError(
      base::StrCat(option, " is ", base::Quote(text),
                   "; it must be HOST:PORT, with an IPv6 address in brackets"));
}

bool IsLoopbackHost(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

}  // namespace heddle::server
