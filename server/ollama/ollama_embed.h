// Ollama's /api/embed and /api/embeddings, by the engine's embeddings (server/openai/embeddings.h).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/embeddings.h"

namespace heddle::server {

// One or several texts, answered with {"model", "embeddings": [[...]], ...}.
absl::StatusOr<EmbeddingRequest> ParseOllamaEmbed(std::string_view body,
                                                  const RequestContext& context);
// One text, answered with {"embedding": [...]}.
absl::StatusOr<EmbeddingRequest> ParseOllamaEmbeddings(std::string_view body,
                                                       const RequestContext& context);

}  // namespace heddle::server
