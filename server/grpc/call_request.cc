#include "server/grpc/call_request.h"

#include <atomic>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"

namespace heddle::server {
namespace {

std::string NewRequestId() {
  static const uint64_t start = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<uint64_t> next = 0;
  return absl::StrFormat("rpc-%016x", start + next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

HttpRequest ToHttpRequest(const grpc::ServerContextBase& context, std::string_view method,
                          std::string_view path, std::string body) {
  HttpRequest request;
  request.method = std::string(method);
  request.path = std::string(path);
  request.body = std::move(body);
  request.received = Clock::now();
  for (const char* name : {"authorization", "x-request-id", "traceparent"}) {
    const auto found = context.client_metadata().find(name);
    if (found == context.client_metadata().end()) continue;
    request.headers.emplace_back(name, std::string(found->second.data(), found->second.size()));
  }
  request.request_id = std::string(request.Header("x-request-id"));
  if (!IsRequestId(request.request_id)) request.request_id = NewRequestId();
  return request;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(status.message().data(), status.message().size())};
}

}  // namespace heddle::server
