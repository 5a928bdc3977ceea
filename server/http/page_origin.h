// Which web pages may have a browser ask for something. A server without API keys on somebody's own
// machine trusts everybody there, and so, unless it looks, every page that is open in a browser: a
// page may send a POST of plain text to any address without asking first, and a name that leads to
// the attacker's page may be made to lead to 127.0.0.1 later (DNS rebinding).
//
// By what browsers add to a request and a page cannot change: Origin (RFC 6454) and Sec-Fetch-Site
// (W3C, Fetch Metadata Request Headers). Programs send neither and are never refused.
//
// Functions only: may be called from any thread.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/http/message.h"

namespace heddle::server {

// Whether an address to listen on is reached from this machine alone.
bool IsLoopback(std::string_view host);

// PERMISSION_DENIED for a request that changes or costs something (not GET, HEAD, OPTIONS), if a
// page of another site had it sent. `allowed_origin` is "*", an origin or empty. On an address of
// this machine alone (`on_loopback`) a page is of this site only if it was asked for by address or
// as localhost, since any other name may be the attacker's. Pages that are an application's own
// (app://, vscode-webview://...) may ask for everything.
absl::Status CheckPageOrigin(const HttpRequest& request, std::string_view allowed_origin,
                             bool on_loopback);

}  // namespace heddle::server
