// grpc.reflection.v1alpha.ServerReflection: the server's services and messages, from the
// descriptors that are linked in. It needs a key if listing the models does. gRPC's own plugin
// would hold a thread for each call, and asks for no key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/grpc/reflection/v1alpha/reflection.pb.h"
#include "server/grpc/services.h"

namespace heddle::server {

inline constexpr std::string_view kReflection =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// Full names of the services that are listed.
using ServiceNames = std::vector<std::string>;

// The answer to one question. Thread-safety: a pure function.
grpc::reflection::v1alpha::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request,
    const ServiceNames& services);

// The reactor of a call, which deletes itself; `services` must outlive it.
grpc::ServerGenericBidiReactor* NewReflectionCall(const ServiceNames* services,
                                                  ServiceContext* context,
                                                  const grpc::GenericCallbackServerContext& call);

}  // namespace heddle::server
