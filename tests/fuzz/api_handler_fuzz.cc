// Whole requests against the handlers of the running server, from the routes' own tables: routes x
// fields x types, conversations, tools, schemas, grammars, and what is no JSON at all. With the
// demo model's tokenizer, chat template and grammar compiler, the pool of prepare threads, and an
// engine that draws whatever the request allows. The same requests go through gRPC's messages.
//
// The answer is the client's fault or an answer, never a server error; it is JSON; every id that
// reaches the engine is one of the model's.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "google/protobuf/util/json_util.h"
#include "proto/heddle/v1/inference.pb.h"
#include "server/grpc/json_mapping.h"
#include "tests/fuzz/fuzzed_request.h"
#include "tests/fuzz/handler_harness.h"

namespace heddle::test {
namespace {

HandlerHarness& Harness() {
  static auto& harness = *new HandlerHarness();  // as long as the process: its threads outlive main
  return harness;
}

// The server's result for `body` if it came as a gRPC message.
template <typename Message>
void CheckMessage(const std::string& body, const char* path, server::JsonForm form) {
  Message message;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(body, &message, options).ok()) return;
  const absl::StatusOr<std::string> json = server::ToRequestJson(message, form);
  if (!json.ok()) {
    HEDDLE_CHECK(absl::IsInvalidArgument(json.status()), json.status().ToString());
    return;
  }
  Harness().Check({"POST", path, "", *json});
}

void CheckMessages(const FuzzedRequest& request) {
  if (request.path == "/v1/chat/completions") {
    CheckMessage<v1::ChatRequest>(request.body, "/v1/chat/completions",
                                  server::JsonForm::kStreaming);
  } else if (request.path == "/v1/completions") {
    CheckMessage<v1::GenerateRequest>(request.body, "/v1/completions",
                                      server::JsonForm::kStreaming);
  } else if (request.path == "/v1/embeddings") {
    CheckMessage<v1::EmbedRequest>(request.body, "/v1/embeddings", server::JsonForm::kPlain);
  } else if (request.path == "/tokenize") {
    CheckMessage<v1::TokenizeRequest>(request.body, "/tokenize", server::JsonForm::kPlain);
  } else if (request.path == "/detokenize") {
    CheckMessage<v1::DetokenizeRequest>(request.body, "/detokenize", server::JsonForm::kPlain);
  }
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const heddle::test::FuzzedRequest request =
      heddle::test::MakeRequest({reinterpret_cast<const char*>(data), size});
  heddle::test::Harness().Check(request);
  heddle::test::CheckMessages(request);
  return 0;
}
