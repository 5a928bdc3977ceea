// Errors as OpenAI's clients read them: {"error":{"message","type","param","code"}}, one shape on
// every route. Inside the server they are an absl::Status, with the field at fault and OpenAI's
// code as payloads.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace heddle::server {

struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type;             // "invalid_request_error", "server_error", ...
  std::string param;            // path of the field at fault; empty: null
  std::string code;             // empty: null
  int retry_after_seconds = 0;  // 0: no Retry-After header
};

// INVALID_ARGUMENT that names the request's field, as in "messages[2].content".
absl::Status FieldError(std::string_view param, std::string_view message,
                        std::string_view code = "invalid_value");

// The same status with the field at fault, or a code for the client, added.
absl::Status WithParam(absl::Status status, std::string_view param);
absl::Status WithCode(absl::Status status, std::string_view code);

// The same status with another status of HTTP than that of its code.
absl::Status WithHttpStatus(absl::Status status, int http_status);

// The result views `status`.
std::string_view MessageOf(const absl::Status& status);

// Status codes to HTTP: INVALID_ARGUMENT 400, UNAUTHENTICATED 401, PERMISSION_DENIED 403, NOT_FOUND
// 404, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503 (both with Retry-After), UNIMPLEMENTED 501,
// DEADLINE_EXCEEDED 504, everything else 500. `status` must not be OK.
ApiError ToApiError(const absl::Status& status);

// An error of the transport itself (404 route, 405, 408, 413, 431...).
ApiError TransportError(int http_status, std::string_view message);

std::string ErrorJson(const ApiError& error);

}  // namespace heddle::server
