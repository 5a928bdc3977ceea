#include "server/request/api_error.h"

#include "absl/strings/cord.h"
#include "base/message.h"
#include "server/json_writer.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

constexpr std::string_view kParamPayload = "heddle/param";
constexpr std::string_view kHttpPayload = "heddle/http";
constexpr std::string_view kCodePayload = "heddle/code";
constexpr int kRetryAfterSeconds = 1;

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string PayloadText(const absl::Status& status, std::string_view url) {
  auto payload = status.GetPayload(base::AbslView(url));
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Cord Cord(std::string_view text) { return absl::Cord(base::AbslView(text)); }

}  // namespace

std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

absl::Status FieldError(std::string_view param, std::string_view message, std::string_view code) {
  return WithCode(WithParam(absl::InvalidArgumentError(base::AbslView(message)), param), code);
}

absl::Status WithParam(absl::Status status, std::string_view param) {
  if (!param.empty()) status.SetPayload(base::AbslView(kParamPayload), Cord(param));
  return status;
}

absl::Status WithCode(absl::Status status, std::string_view code) {
  if (!code.empty()) status.SetPayload(base::AbslView(kCodePayload), Cord(code));
  return status;
}

absl::Status WithHttpStatus(absl::Status status, int http_status) {
  status.SetPayload(base::AbslView(kHttpPayload), Cord(std::to_string(http_status)));
  return status;
}

ApiError ToApiError(const absl::Status& status) {
  const std::string own = PayloadText(status, kHttpPayload);
  const int http_status = own.empty() ? HttpStatus(status.code()) : std::stoi(own);
  ApiError error = TransportError(http_status, MessageOf(status));
  error.param = PayloadText(status, kParamPayload);
  error.code = PayloadText(status, kCodePayload);
  if (std::optional<int> seconds = RetryAfterSeconds(status)) error.retry_after_seconds = *seconds;
  return error;
}

ApiError TransportError(int http_status, std::string_view message) {
  ApiError error;
  error.http_status = http_status;
  error.message = std::string(message);
  error.type = std::string(ErrorType(http_status));
  if (http_status == 429 || http_status == 503) error.retry_after_seconds = kRetryAfterSeconds;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  std::string out;
  JsonWriter json(&out);
  auto text_or_null = [&json](std::string_view name, std::string_view text) {
    json.Key(name);
    text.empty() ? json.Null() : json.String(text);
  };
  json.BeginObject().Key("error").BeginObject();
  json.Member("message", error.message).Member("type", error.type);
  text_or_null("param", error.param);
  text_or_null("code", error.code);
  json.EndObject().EndObject();
  return out;
}

}  // namespace heddle::server
