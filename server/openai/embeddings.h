// /v1/embeddings, and the routes that follow from it: /v1/score and /v1/rerank, by the cosine of
// the angle between two texts. It turns a body into requests that pool hidden states, and their
// results into the answer.
// An embedding is scaled to length 1 after it has been cut to `dimensions`.
// Sources: OpenAI's API reference (embeddings); the rerank shape that Jina and Cohere share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"
#include "server/request/json_input.h"

namespace heddle::server {

enum class EmbeddingTask : uint8_t { kEmbed, kScore, kRerank };

struct EmbeddingRequest;

// Id and time that distinguish an answer from others.
struct EmbeddingStamp {
  std::string_view id;  // unique, of [0-9a-f]
  int64_t created = 0;  // seconds since 1970
  double seconds = 0;   // that the request took
};

// Writes the body of an answer from embeddings of length 1 [one per generation].
using EmbeddingWriter = std::string (*)(const EmbeddingRequest& request,
                                        const std::vector<std::vector<float>>& embeddings,
                                        const EmbeddingStamp& stamp);

// The writer of OpenAI's routes.
std::string WriteOpenAiEmbeddings(const EmbeddingRequest& request,
                                  const std::vector<std::vector<float>>& embeddings,
                                  const EmbeddingStamp& stamp);

struct EmbeddingRequest {
  EmbeddingTask task = EmbeddingTask::kEmbed;
  ModelChoice model;
  std::vector<GenerationRequest> generations;  // ids unset; one per text
  int32_t dimensions = 0;
  bool base64 = false;
  // kScore: texts [0, num_queries) are compared with the others, one to one, or the single one with
  // each. kRerank: text 0 is compared with the others, which are `documents`.
  size_t num_queries = 1;
  std::vector<std::string> documents;  // empty: they are not returned
  size_t top_n = 0;                    // 0: all
  EmbeddingWriter write = WriteOpenAiEmbeddings;
};

// INVALID_ARGUMENT or NOT_FOUND, with param and code.
absl::StatusOr<EmbeddingRequest> ParseEmbeddingRequest(EmbeddingTask task, std::string_view body,
                                                       const RequestContext& context);

// The same for a body that is already parsed.
absl::StatusOr<EmbeddingRequest> ReadEmbeddingRequest(EmbeddingTask task, const Json& body,
                                                      const RequestContext& context);

// `embeddings` [one per generation] are the engine's pooled states.
std::string EmbeddingBody(const EmbeddingRequest& request,
                          std::vector<std::vector<float>> embeddings, const EmbeddingStamp& stamp);

}  // namespace heddle::server
