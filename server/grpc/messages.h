// Converts messages to and from the bytes of gRPC's generic service.
// Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace heddle::server {

// INVALID_ARGUMENT if the bytes are not such a message. `buffer` is empty afterwards.
absl::Status ParseMessage(grpc::ByteBuffer* buffer, google::protobuf::Message* message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace heddle::server
