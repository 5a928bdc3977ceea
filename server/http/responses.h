// HTTP responses that several parts of server/http/ make. Functions only: any thread.
#pragma once

#include <string>
#include <string_view>

#include "server/http/http_message.h"
#include "server/http/router.h"
#include "server/request/api_error.h"

namespace heddle::server {

HttpResponse JsonResponse(std::string body);
HttpResponse TextResponse(std::string_view content_type, std::string body);

// Adds the headers by which a browser shows an answer to pages of `cors_origin` ("*" or one origin;
// empty: none). Source: the Fetch standard, "CORS protocol".
void AddCorsHeaders(std::string_view cors_origin, HttpResponse* response);

// An error with the headers of its status (Retry-After, WWW-Authenticate) and CORS headers. `body`:
// the error, in the shape of its API.
HttpResponse ErrorResponse(const ApiError& error, std::string body, std::string_view cors_origin);

// The answer if no route takes the request: 404 or 405, or 204 for OPTIONS. REQUIRES: match.route
// is null.
HttpResponse NoRouteResponse(const RouteMatch& match, const HttpRequest& request,
                             std::string_view cors_origin);

}  // namespace heddle::server
