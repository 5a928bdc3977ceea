#include "server/http/page_origin.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/message.h"

namespace heddle::server {
namespace {

// Extracts "host" from "host:port" and "[::1]:port", the latter without brackets.
std::string_view HostOf(std::string_view authority) {
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    return end == std::string_view::npos ? std::string_view() : authority.substr(1, end - 1);
  }
  return authority.substr(0, authority.find(':'));
}

// Whether the host is an address, or localhost and names below it. No domain name has a colon, or
// only digits and dots.
bool IsOwnName(std::string_view host) {
  constexpr std::string_view kLocalhost = "localhost";
  const bool is_address =
      host.find(':') != std::string_view::npos || std::all_of(host.begin(), host.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.';
      });
  if (is_address) return !host.empty();
  if (host.size() < kLocalhost.size()) return false;
  const size_t before = host.size() - kLocalhost.size();
  return EqualsIgnoringCase(host.substr(before), kLocalhost) &&
         (before == 0 || host[before - 1] == '.');
}

// Used if the browser does not send Sec-Fetch-Site (plain HTTP to another machine, and browsers
// before 2023).
bool IsOwnOrigin(std::string_view authority, std::string_view host, bool on_loopback) {
  if (authority.empty() || !EqualsIgnoringCase(authority, host)) return false;
  return !on_loopback || IsOwnName(HostOf(host));
}

}  // namespace

bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

absl::Status CheckPageOrigin(const HttpRequest& request, std::string_view allowed_origin,
                             bool on_loopback) {
  if (request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS") {
    return absl::OkStatus();
  }
  const std::string_view origin = request.Header("Origin");
  const std::string_view site = request.Header("Sec-Fetch-Site");
  if (origin.empty() && site.empty()) return absl::OkStatus();
  if (allowed_origin == "*" || (!origin.empty() && origin == allowed_origin)) {
    return absl::OkStatus();
  }
  constexpr std::string_view kScheme = "://";
  const size_t mark = origin.find(kScheme);
  std::string_view authority;
  if (mark != std::string_view::npos) {
    const std::string_view scheme = origin.substr(0, mark);
    if (scheme != "http" && scheme != "https") return absl::OkStatus();
    authority = origin.substr(mark + kScheme.size());
  }
  const bool own = site.empty() ? IsOwnOrigin(authority, request.Header("Host"), on_loopback)
                                : site == "same-origin" || site == "none";
  if (own) return absl::OkStatus();
  return absl::PermissionDeniedError(base::StrCat(
      "a web page of ", authority.empty() ? "another site" : base::Quote(origin),
      " had this sent, and without API keys this server takes requests of its own page "
      "alone; give the page's origin to --cors-origin, or set keys"));
}

}  // namespace heddle::server
