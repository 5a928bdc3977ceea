// The services' common conversion of an RPC to an HTTP request.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "server/http/http_message.h"

namespace heddle::server {

// A request of the HTTP API with the call's metadata as headers: authorization, x-request-id (a new
// one if the client sends none), traceparent.
HttpRequest ToHttpRequest(const grpc::ServerContextBase& context, std::string_view method,
                          std::string_view path, std::string body);

// The same code with the same message.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace heddle::server
