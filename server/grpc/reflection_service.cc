#include "server/grpc/reflection_service.h"

#include <set>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "server/grpc/call_request.h"
#include "server/grpc/messages.h"
#include "server/grpc/stream_call.h"

namespace heddle::server {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::FileDescriptorResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// Appends `file` and all its imports, each once.
void AppendFiles(const FileDescriptor* file, std::set<const FileDescriptor*>* seen,
                 FileDescriptorResponse* response) {
  if (!seen->insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AppendFiles(file->dependency(i), seen, response);
  }
}

void SetFile(const FileDescriptor* file, ServerReflectionResponse* response) {
  if (file == nullptr) {
    response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response->mutable_error_response()->set_error_message("there is nothing of that name here");
    return;
  }
  std::set<const FileDescriptor*> seen;
  AppendFiles(file, &seen, response->mutable_file_descriptor_response());
}

// A call of reflection: each question is answered before the next is read.
class ReflectionCall final : public StreamCall {
 public:
  ReflectionCall(const ServiceNames* services, ServiceContext* context, HttpRequest head)
      : StreamCall(context, std::move(head)), services_(services) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      call_->Complete(grpc::Status::OK);
      return;
    }
    ServerReflectionRequest request;
    if (!ParseMessage(&received_, &request).ok()) {
      call_->Complete({grpc::StatusCode::INVALID_ARGUMENT, "not a ServerReflectionRequest"});
      return;
    }
    const grpc::ByteBuffer answer = SerializeMessage(AnswerReflection(request, *services_));
    std::lock_guard lock(mutex_);
    if (CanWrite()) Write(answer);
  }

 private:
  void OnWritten() override { ReadMessage(); }

  const ServiceNames* services_;
};

}  // namespace

ServerReflectionResponse AnswerReflection(const ServerReflectionRequest& request,
                                          const ServiceNames& services) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case ServerReflectionRequest::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), &response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      // No message here has extensions.
      response.mutable_all_extension_numbers_response()->set_base_type_name(
          request.all_extension_numbers_of_type());
      break;
    default:
      SetFile(nullptr, &response);
      break;
  }
  return response;
}

grpc::ServerGenericBidiReactor* NewReflectionCall(const ServiceNames* services,
                                                  ServiceContext* context,
                                                  const grpc::GenericCallbackServerContext& call) {
  return new ReflectionCall(services, context, ToHttpRequest(call, "GET", "/v1/models", ""));
}

}  // namespace heddle::server
