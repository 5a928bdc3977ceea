#include "server/grpc/messages.h"

#include <algorithm>

#include "base/message.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"

namespace heddle::server {

absl::Status ParseMessage(grpc::ByteBuffer* buffer, google::protobuf::Message* message) {
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(buffer);
    parsed = reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
  }
  buffer->Clear();
  if (parsed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      base::StrCat("the message is not a valid ", message->GetTypeName()));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer buffer;
  constexpr int kBlockBytes = 1 << 20;
  const auto bytes = static_cast<int>(message.ByteSizeLong());
  grpc::ProtoBufferWriter writer(&buffer, std::min(bytes, kBlockBytes), bytes);
  message.SerializeToZeroCopyStream(&writer);
  return buffer;
}

}  // namespace heddle::server
