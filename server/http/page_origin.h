// Decides which web pages may have a browser send a request. A server without API keys on
// somebody's own machine trusts everybody there and so, without a check, every page open in a
// browser: a page may send a POST of plain text to any address without asking first, and a name
// that leads to the attacker's page may later be made to lead to 127.0.0.1 (DNS rebinding).
//
// It uses headers that browsers add to a request and a page cannot change: Origin (RFC 6454) and
// Sec-Fetch-Site (W3C, Fetch Metadata Request Headers). Programs send neither and are never
// refused.
// Functions only: may be called from any thread.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/http/http_message.h"

namespace heddle::server {

// Whether an address to listen on can be reached from this machine only.
bool IsLoopback(std::string_view host);

// PERMISSION_DENIED for a request that changes or costs something (not GET, HEAD, OPTIONS), if a
// page of another site sent it. `allowed_origin` is "*", an origin or empty. On an address of this
// machine only (`on_loopback`) a page belongs to this site only if it was requested by address or
// as localhost, because any other name may be the attacker's. Pages of an application's own
// (app://, vscode-webview://...) may request everything.
absl::Status CheckPageOrigin(const HttpRequest& request, std::string_view allowed_origin,
                             bool on_loopback);

}  // namespace heddle::server
