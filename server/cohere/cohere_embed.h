// Cohere's /v1/embed and /v2/embed, by the engine's embeddings (server/openai/embeddings.h); its
// rerank routes have the shape of OpenAI-compatible servers' and need none of their own.
// Source: Cohere's API reference (Embed API, versions 1 and 2).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/embeddings.h"

namespace heddle::server {

// `version`: 1, whose answers are lists of vectors where no type was asked for, or 2.
absl::StatusOr<EmbeddingRequest> ParseCohereEmbed(int version, std::string_view body,
                                                  const RequestContext& context);

}  // namespace heddle::server
