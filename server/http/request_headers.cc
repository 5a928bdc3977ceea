#include "server/http/request_headers.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "server/http/content_coding.h"

namespace heddle::server {
namespace {

// The first header that occurs twice although it may occur only once, or "".
std::string_view RepeatedHeader(const HttpRequest& request) {
  constexpr std::string_view kSingle[] = {"Authorization",  "X-Api-Key",        "Content-Type",
                                          "Expect",         "Traceparent",      "X-Request-Id",
                                          "Content-Length", "Transfer-Encoding"};
  for (std::string_view name : kSingle) {
    int count = 0;
    for (const auto& header : request.headers) {
      if (EqualsIgnoringCase(header.first, name) && ++count > 1) return name;
    }
  }
  return "";
}

}  // namespace

std::optional<HeaderFault> FaultOf(const HttpRequest& request) {
  const std::string_view length = request.Header("Content-Length");
  const std::string_view encoding = request.Header("Content-Encoding");
  const std::string_view expect = request.Header("Expect");
  if (std::string_view name = RepeatedHeader(request); !name.empty()) {
    return HeaderFault{400, base::StrCat("a request must not have the header ", name, " twice")};
  }
  if (length.find_first_not_of("0123456789") != std::string_view::npos) {
    return HeaderFault{
        400, base::StrCat("Content-Length must be one number, found ", base::Quote(length))};
  }
  if (!ContentCodingOf(encoding).has_value()) {
    return HeaderFault{415,
                       base::StrCat("content encoding ", base::Quote(encoding),
                                    " is not supported; send gzip, zstd, or the body as it is")};
  }
  if (!expect.empty() && (!EqualsIgnoringCase(expect, "100-continue") || !request.http11)) {
    return HeaderFault{417, "only 'Expect: 100-continue' is supported"};
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> Http2Fields(const HttpResponse& response,
                                                             std::optional<size_t> body_bytes,
                                                             std::string_view request_id) {
  std::vector<std::pair<std::string, std::string>> fields;
  const auto add = [&fields](std::string_view name, std::string_view value) {
    auto& [key, text] = fields.emplace_back(name, value);
    absl::AsciiStrToLower(&key);
    // nghttp2 would send such a text as it is.
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  };
  if (response.status != 204) {
    if (!response.content_type.empty()) add("content-type", response.content_type);
    if (body_bytes.has_value()) add("content-length", std::to_string(*body_bytes));
  }
  add("cache-control", "no-cache");
  add("x-accel-buffering", "no");
  if (!request_id.empty()) add("x-request-id", request_id);
  for (const auto& [name, value] : response.headers) add(name, value);
  return fields;
}

}  // namespace heddle::server
