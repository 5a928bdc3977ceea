// What the services share: an RPC as an HTTP request.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "server/http/message.h"

namespace heddle::server {

// A request of the HTTP API with the call's metadata as headers: authorization, x-request-id (a new
// one where the client sends none), traceparent.
HttpRequest ToHttpRequest(const grpc::CallbackServerContext& context, std::string_view method,
                          std::string_view path, std::string body);

grpc::Status InvalidArgument(const absl::Status& status);

}  // namespace heddle::server
