// Maps paths to functions by a table, from which the 404 and 405 answers, OPTIONS, metrics and
// documentation are made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heddle::server {

enum class RouteId : uint8_t {
  kIndex,
  kHealth,
  kReady,
  kMetrics,
  kVersion,
  kStats,
  kDebugRequests,
  kDebugRequest,
  kModels,
  kModel,
  kCompletions,
  kChatCompletions,
  kResponses,
  kResponse,
  kDeleteResponse,
  kInputItems,
  kCancelResponse,
  kInputTokens,
  kCompactResponse,
  kCreateConversation,
  kConversation,
  kUpdateConversation,
  kDeleteConversation,
  kConversationItems,
  kAddConversationItems,
  kConversationItem,
  kDeleteConversationItem,
  kUploadFile,
  kFiles,
  kFile,
  kFileContent,
  kDeleteFile,
  kCreateBatch,
  kBatches,
  kBatch,
  kCancelBatch,
  kCreateBranches,
  kBranch,
  kDeleteBranch,
  kContinueBranch,
  kJoinBranches,
  kScoreBranch,
  kMessages,
  kCountTokens,
  kEmbeddings,
  kScore,
  kRerank,
  kClassify,
  kAnyRerank,
  kTeiEmbed,  // Text Embeddings Inference's
  kTeiPredict,
  kTeiSimilarity,
  kTeiRoot,
  kTeiInfo,
  kCohereEmbed,
  kCohereEmbed2,
  kOpenApi,
  kTokenize,
  kDetokenize,
  kOllamaChat,
  kOllamaGenerate,
  kOllamaEmbed,
  kOllamaEmbeddings,
  kOllamaTags,
  kOllamaRunning,
  kOllamaShow,
  kOllamaVersion,
  kLlamaCompletion,
  kLlamaInfill,
  kLlamaProps,
  kLlamaSlots,
  kApplyTemplate,
  kTokenizerInfo,
  kKserve,
  kKserveLive,
  kKserveReady,
  kKserveModel,
  kKserveModelReady,
  kKserveInfer,
  kLoadAdapter,  // vLLM's routes
  kUnloadAdapter,
  kLoadPinnedAdapter,  // SGLang's
  kUnloadNamedAdapter,
  kBaseAdapters,  // llama.cpp's
  kSetBaseAdapters,
};

struct Route {
  RouteId id;
  std::string_view method;  // HEAD is answered like GET
  // "{id}" and "{item}" match one segment; as the end of models' and requests' paths, all of the
  // rest. A path that equals a pattern is not taken for another pattern's id.
  std::string_view pattern;
  bool needs_key;  // if API keys are set
  std::string_view summary;
  bool needs_admin = false;  // shows data of other clients, or changes what they get
};

std::span<const Route> Routes();

struct RouteMatch {
  const Route* route = nullptr;       // null: see allow
  std::string_view parameter;         // the text that "{id}" matched; a view into `path`
  std::string_view second_parameter;  // the same of "{item}"
  std::string allow;  // methods of this path, for the Allow header; empty: no such path
};

// The route of a pattern, the first if it has several methods; nullptr: none.
const Route* RouteNamed(std::string_view pattern);

RouteMatch MatchRoute(std::string_view method, std::string_view path);

}  // namespace heddle::server
