// Routes of Text Embeddings Inference, by the engine's embeddings (server/openai/embeddings.h):
// /embed, /predict, /similarity, the shape of /rerank with "texts", and POST / for clients that
// know a server's address alone (huggingface_hub's InferenceClient).
// Source: the OpenAPI document of Hugging Face's text-embeddings-inference.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/embeddings.h"

namespace heddle::server {

// One or several texts, answered with [[...], ...].
absl::StatusOr<EmbeddingRequest> ParseTeiEmbed(std::string_view body,
                                               const RequestContext& context);
// A text, answered with its classes, the best first: [{"label", "score"}, ...]; several texts,
// answered with a list of such lists.
absl::StatusOr<EmbeddingRequest> ParseTeiPredict(std::string_view body,
                                                 const RequestContext& context);
// A text and others, answered with how alike they are: [...].
absl::StatusOr<EmbeddingRequest> ParseTeiSimilarity(std::string_view body,
                                                    const RequestContext& context);
// POST /: the one of the three routes above that the body and the model are for.
absl::StatusOr<EmbeddingRequest> ParseTeiRoot(std::string_view body, const RequestContext& context);
// /rerank: with "texts" answered with [{"index", "score"}, ...], and otherwise as /v1/rerank.
absl::StatusOr<EmbeddingRequest> ParseAnyRerank(std::string_view body,
                                                const RequestContext& context);

// /info: what is served.
absl::StatusOr<std::string> TeiInfo(const RequestContext& context);

}  // namespace heddle::server
