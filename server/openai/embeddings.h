// /v1/embeddings, /v1/classify, /v1/score and /v1/rerank: routes of hidden states that are pooled.
// It turns a body into requests that pool them, and their results into the answer.
//
// Texts are compared by a model with one class (a cross-encoder), which reads both as one text, or
// by the cosine of the angle between two embeddings. An embedding is scaled to length 1 after it
// has been cut to `dimensions`, unless the model's folder says that it is not. Sources: OpenAI's
// API reference (embeddings); vLLM's (classify, score); the rerank shape that Jina and Cohere
// share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/pooled_head.h"
#include "server/json_writer.h"
#include "server/openai/request_context.h"
#include "server/request/json_input.h"

namespace heddle::server {

enum class EmbeddingTask : uint8_t { kEmbed, kScore, kRerank, kClassify };

struct EmbeddingRequest;

// Id and time that distinguish an answer from others.
struct EmbeddingStamp {
  std::string_view id;  // unique, of [0-9a-f]
  int64_t created = 0;  // seconds since 1970
  double seconds = 0;   // that the request took
};

// Writes the body of an answer from what FinishPooled has made [one per generation].
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
  std::vector<GenerationRequest> generations;      // ids unset; one per text
  std::shared_ptr<const engine::PooledHead> head;  // of the model; null: it has none
  int32_t dimensions = 0;
  bool base64 = false;
  bool use_activation = true;  // scores of classes; false: their logits
  bool reads_pairs = false;    // each generation is two texts, whose score is its only class's
  // Without reads_pairs. kScore: texts [0, num_queries) are compared with the others, one to one,
  // or the single one with each. kRerank: text 0 is compared with the others, which are
  // `documents`.
  size_t num_queries = 1;
  std::vector<std::string> documents;  // empty: they are not returned
  // kEmbed: whether vectors are scaled to length 1; none: as the model's folder says.
  std::optional<bool> normalize;
  size_t top_n = 0;  // 0: all
  EmbeddingWriter write = WriteOpenAiEmbeddings;
};

// Parts of answers, for writers of other APIs: how well each pair of texts fits; the indices of
// scores, the best first; one vector, as numbers or as base64 of little-endian floats.
std::vector<float> PairScores(const EmbeddingRequest& request,
                              const std::vector<std::vector<float>>& values);
std::vector<size_t> BestFirst(const std::vector<float>& scores);
void WriteEmbedding(const std::vector<float>& values, bool base64, JsonWriter* json);

// INVALID_ARGUMENT or NOT_FOUND, with param and code.
absl::StatusOr<EmbeddingRequest> ParseEmbeddingRequest(EmbeddingTask task, std::string_view body,
                                                       const RequestContext& context);

// The same for a body that is already parsed.
absl::StatusOr<EmbeddingRequest> ReadEmbeddingRequest(EmbeddingTask task, const Json& body,
                                                      const RequestContext& context);

// Turns the engine's pooled state of a generation into an embedding or scores of classes.
void FinishPooled(const EmbeddingRequest& request, std::vector<float>* values);

}  // namespace heddle::server
