// Any bytes as the body of a request: refused with an error that is valid JSON, or answered with
// frames that are.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/answer/answer.h"
#include "server/anthropic/messages_format.h"
#include "server/anthropic/messages_request.h"
#include "server/kserve/infer_request.h"
#include "server/llamacpp/llama_request.h"
#include "server/llamacpp/llama_server.h"
#include "server/ollama/ollama_embed.h"
#include "server/ollama/ollama_models.h"
#include "server/ollama/ollama_request.h"
#include "server/openai/embeddings.h"
#include "server/openai/input_items.h"
#include "server/openai/openai_format.h"
#include "server/openai/openai_request.h"
#include "server/openai/responses_request.h"
#include "server/openai/tokenize.h"
#include "tests/server/byte_codec.h"

namespace heddle::test {
namespace {

using server::Answer;
using server::ApiRequest;
using server::Endpoint;
using server::RequestContext;

// Plays every choice to its end; the body's own bytes are the model's tokens.
void PlayAnswer(const ApiRequest& request, const RequestContext& context, std::string_view text) {
  Answer answer(&request, context.codec,
                std::make_unique<server::OpenAiFormat>(&request, context.model, context.codec,
                                                       server::OpenAiFormat::Identity{"id", 0}));
  Answer::Output output;
  for (size_t prompt = 0; prompt < request.generations.size(); ++prompt) {
    for (int32_t branch = 0; branch < request.best_of; ++branch) {
      server::GenerationEvent event;
      event.branch = branch;
      for (TokenId token : Bytes(text)) {
        event.tokens.push_back(engine::SampledToken{token, -1.0f, {{token, -1.0f}}});
      }
      event.finished = true;
      answer.Take(prompt, std::move(event), &output);
    }
  }
  HEDDLE_CHECK(answer.done() && answer.error().ok(), "an answer that played to its end is done");
  if (!request.stream) {
    HEDDLE_CHECK(nlohmann::json::accept(answer.Body()), "an answer is valid JSON");
  }
}

void CheckRefusal(const absl::Status& status) {
  if (status.ok()) return;
  HEDDLE_CHECK(nlohmann::json::accept(server::MessagesErrorJson(server::ToApiError(status))),
               "an error is valid JSON");
  HEDDLE_CHECK(server::ToApiError(status).http_status < 500,
               "what a client sends is never the server's fault");
}

void CheckOtherApis(std::string_view input, const RequestContext& context) {
  server::ResponseStore store;
  server::ConversationStore conversations;
  const auto response =
      server::ParseResponsesRequest(input, context, {&store, &conversations}, "u");
  CheckRefusal(response.status());
  const auto counted = server::CountResponseTokens(input, context, {&store, &conversations});
  CheckRefusal(counted.status());
  CheckRefusal(
      server::ParseCompactionRequest(input, context, {&store, &conversations}, "u").status());
  if (response.ok()) {
    const std::string expected =
        base::StrCat("\"input_tokens\":", response->api.generations.front().prompt.size(), "}");
    HEDDLE_CHECK(counted.ok() && counted->ends_with(expected), "a request's tokens are counted");
    HEDDLE_CHECK(
        !response->store || nlohmann::json::accept(*server::ListItems(response->items, {})),
        "items are JSON");
  }
  CheckRefusal(server::ParseMessagesRequest(input, context).status());
  CheckRefusal(server::CountMessageTokens(input, context).status());
  CheckRefusal(server::ParseInferRequest(input, context).status());
  RequestContext binary = context;
  binary.json_bytes = input.size() / 2;
  CheckRefusal(server::ParseInferRequest(input, binary).status());
  CheckRefusal(server::ParseLlamaCompletion(input, context).status());
  CheckRefusal(server::ParseLlamaInfill(input, context).status());
  CheckRefusal(server::ApplyTemplate(input, context).status());
  CheckRefusal(server::ParseOllamaChat(input, context).status());
  CheckRefusal(server::ParseOllamaGenerate(input, context).status());
  CheckRefusal(server::ParseOllamaEmbed(input, context).status());
  CheckRefusal(server::OllamaShow(input, context).status());
  for (server::EmbeddingTask task :
       {server::EmbeddingTask::kEmbed, server::EmbeddingTask::kScore,
        server::EmbeddingTask::kRerank, server::EmbeddingTask::kClassify}) {
    CheckRefusal(server::ParseEmbeddingRequest(task, input, context).status());
  }
}

void Check(std::string_view input) {
  static const ByteCodec codec;
  static const server::ServedModel model = [] {
    server::ServedModel served;
    served.id = "m";
    served.max_context = 1 << 20;
    served.embedding_size = 8;
    return served;
  }();
  RequestContext context{&model, &codec, 1};
  RequestContext quick = context;
  quick.patience.short_only = true;
  for (Endpoint endpoint : {Endpoint::kCompletion, Endpoint::kChat}) {
    const absl::Status hurried = server::ParseRequest(endpoint, input, quick).status();
    absl::StatusOr<ApiRequest> request = server::ParseRequest(endpoint, input, context);
    HEDDLE_CHECK(!server::IsTakesLong(request.status()), "somebody has the time");
    HEDDLE_CHECK(server::IsTakesLong(hurried) || hurried.code() == request.status().code(),
                 "a quick reading ends like a patient one");
    if (request.ok()) {
      if (request->num_branches() <= 4) PlayAnswer(*request, context, input.substr(0, 64));
      continue;
    }
    std::string error = server::ErrorJson(server::ToApiError(request.status()));
    HEDDLE_CHECK(nlohmann::json::accept(error), "an error is valid JSON");
    HEDDLE_CHECK(server::ToApiError(request.status()).http_status < 500,
                 "what a client sends is never the server's fault");
  }
  CheckOtherApis(input, context);
  (void)server::Tokenize(input, context);
  (void)server::Detokenize(input, context);
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  heddle::test::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
