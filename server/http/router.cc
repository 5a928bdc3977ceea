#include "server/http/router.h"

#include <algorithm>

namespace heddle::server {
namespace {

constexpr Route kRoutes[] = {
    {RouteId::kCompletions, "POST", "/v1/completions", true, "Continue a text"},
    {RouteId::kChatCompletions, "POST", "/v1/chat/completions", true, "Answer a conversation"},
    {RouteId::kResponses, "POST", "/v1/responses", true, "Answer, in OpenAI's Responses form"},
    {RouteId::kResponse, "GET", "/v1/responses/{id}", true, "A response that is still kept"},
    {RouteId::kDeleteResponse, "DELETE", "/v1/responses/{id}", true, "Forget a response"},
    {RouteId::kInputItems, "GET", "/v1/responses/{id}/input_items", true, "What it was made of"},
    {RouteId::kCancelResponse, "POST", "/v1/responses/{id}/cancel", true,
     "End a response that runs in the background"},
    {RouteId::kInputTokens, "POST", "/v1/responses/input_tokens", true,
     "Tokens that such a request makes the model read"},
    {RouteId::kCompactResponse, "POST", "/v1/responses/compact", true,
     "A conversation as a summary to go on from"},
    {RouteId::kCreateConversation, "POST", "/v1/conversations", true, "Begin a conversation"},
    {RouteId::kConversation, "GET", "/v1/conversations/{id}", true, "Describe a conversation"},
    {RouteId::kUpdateConversation, "POST", "/v1/conversations/{id}", true, "Set its metadata"},
    {RouteId::kDeleteConversation, "DELETE", "/v1/conversations/{id}", true, "Forget it"},
    {RouteId::kConversationItems, "GET", "/v1/conversations/{id}/items", true, "List its items"},
    {RouteId::kAddConversationItems, "POST", "/v1/conversations/{id}/items", true,
     "Add items to it"},
    {RouteId::kConversationItem, "GET", "/v1/conversations/{id}/items/{item}", true,
     "One of its items"},
    {RouteId::kDeleteConversationItem, "DELETE", "/v1/conversations/{id}/items/{item}", true,
     "Remove an item from it"},
    {RouteId::kUploadFile, "POST", "/v1/files", true, "Keep a file, such as a batch's input"},
    {RouteId::kFiles, "GET", "/v1/files", true, "List the files"},
    {RouteId::kFile, "GET", "/v1/files/{id}", true, "Describe a file"},
    {RouteId::kFileContent, "GET", "/v1/files/{id}/content", true, "A file's content"},
    {RouteId::kDeleteFile, "DELETE", "/v1/files/{id}", true, "Delete a file"},
    {RouteId::kCreateBatch, "POST", "/v1/batches", true,
     "Answer all lines of a file, beside live requests"},
    {RouteId::kBatches, "GET", "/v1/batches", true, "List the batches"},
    {RouteId::kBatch, "GET", "/v1/batches/{id}", true, "How far a batch is"},
    {RouteId::kCancelBatch, "POST", "/v1/batches/{id}/cancel", true, "End a batch early"},
    {RouteId::kCreateBranches, "POST", "/v1/branches", true,
     "Begin a tree of branches, or fork one"},
    {RouteId::kBranch, "GET", "/v1/branches/{id}", true, "Describe a branch, with its tokens"},
    {RouteId::kDeleteBranch, "DELETE", "/v1/branches/{id}", true,
     "End a branch and all that was forked from it"},
    {RouteId::kContinueBranch, "POST", "/v1/branches/{id}/continue", true, "Go on with a branch"},
    {RouteId::kJoinBranches, "POST", "/v1/branches/{id}/join", true,
     "Join branches that were forked from it"},
    {RouteId::kScoreBranch, "POST", "/v1/branches/{id}/score", true,
     "How likely texts are behind a branch"},
    {RouteId::kMessages, "POST", "/v1/messages", true, "Answer, in Anthropic's Messages form"},
    {RouteId::kCountTokens, "POST", "/v1/messages/count_tokens", true, "Tokens of such a request"},
    {RouteId::kEmbeddings, "POST", "/v1/embeddings", true, "Texts to vectors"},
    {RouteId::kScore, "POST", "/v1/score", true, "How alike texts are"},
    {RouteId::kRerank, "POST", "/v1/rerank", true, "Documents by how well they fit a query"},
    {RouteId::kClassify, "POST", "/v1/classify", true, "How well classes fit texts"},
    {RouteId::kClassify, "POST", "/classify", true, "The same, where other servers have it"},
    {RouteId::kScore, "POST", "/score", true, "The same, where other servers have it"},
    {RouteId::kAnyRerank, "POST", "/rerank", true,
     "The same, where other servers have it; with \"texts\" in Text Embeddings Inference's form"},
    {RouteId::kRerank, "POST", "/v2/rerank", true, "The same, where other servers have it"},
    {RouteId::kTeiEmbed, "POST", "/embed", true,
     "Texts to vectors, in Text Embeddings Inference's form"},
    {RouteId::kTeiPredict, "POST", "/predict", true, "... how well classes fit texts"},
    {RouteId::kTeiSimilarity, "POST", "/similarity", true, "... how alike texts are"},
    {RouteId::kTeiInfo, "GET", "/info", true, "... what is served"},
    {RouteId::kCohereEmbed, "POST", "/v1/embed", true, "Texts to vectors, in Cohere's form"},
    {RouteId::kCohereEmbed2, "POST", "/v2/embed", true, "... of its second version"},
    {RouteId::kChatCompletions, "POST", "/openai/deployments/{id}/chat/completions", true,
     "Answer a conversation, where Azure's clients look for it; the id is a model's name"},
    {RouteId::kCompletions, "POST", "/openai/deployments/{id}/completions", true,
     "Continue a text, where Azure's clients look for it"},
    {RouteId::kEmbeddings, "POST", "/openai/deployments/{id}/embeddings", true,
     "Texts to vectors, where Azure's clients look for it"},
    {RouteId::kModels, "GET", "/v1/models", true, "List the models"},
    {RouteId::kModel, "GET", "/v1/models/{id}", true, "Describe one model"},
    {RouteId::kTokenize, "POST", "/tokenize", true, "Text to token ids"},
    {RouteId::kDetokenize, "POST", "/detokenize", true, "Token ids to text"},
    {RouteId::kKserveInfer, "POST", "/v2/models/{id}/infer", true,
     "Continue texts, in the Open Inference Protocol"},
    {RouteId::kKserveModelReady, "GET", "/v2/models/{id}/ready", true, "... whether it is there"},
    {RouteId::kKserveModel, "GET", "/v2/models/{id}", true, "... its tensors"},
    {RouteId::kKserveInfer, "POST", "/v2/models/{id}/versions/1/infer", true,
     "... of the version that each model has"},
    {RouteId::kKserveModelReady, "GET", "/v2/models/{id}/versions/1/ready", true,
     "... of that version"},
    {RouteId::kKserveModel, "GET", "/v2/models/{id}/versions/1", true, "... of that version"},
    {RouteId::kKserve, "GET", "/v2", false, "What the server is, in the Open Inference Protocol"},
    {RouteId::kKserveLive, "GET", "/v2/health/live", false, "Whether the engine makes progress"},
    {RouteId::kKserveReady, "GET", "/v2/health/ready", false, "Whether requests are accepted"},
    {RouteId::kTokenizerInfo, "GET", "/tokenizer_info", true, "What the tokenizer is"},
    {RouteId::kApplyTemplate, "POST", "/apply-template", true, "The text of a conversation"},
    {RouteId::kLlamaCompletion, "POST", "/completion", true,
     "Continue a text, in llama.cpp's form"},
    {RouteId::kLlamaInfill, "POST", "/infill", true, "Fill in a text, in llama.cpp's form"},
    {RouteId::kLlamaProps, "GET", "/props", true, "The model and its defaults"},
    {RouteId::kLlamaSlots, "GET", "/slots", true, "How many sequences run, as slots"},
    {RouteId::kOllamaChat, "POST", "/api/chat", true, "Answer a conversation, in Ollama's form"},
    {RouteId::kOllamaGenerate, "POST", "/api/generate", true, "Answer a prompt, in Ollama's form"},
    {RouteId::kOllamaEmbed, "POST", "/api/embed", true, "Texts to vectors, in Ollama's form"},
    {RouteId::kOllamaEmbeddings, "POST", "/api/embeddings", true, "... one text"},
    {RouteId::kOllamaTags, "GET", "/api/tags", true, "List the models, in Ollama's form"},
    {RouteId::kOllamaRunning, "GET", "/api/ps", true, "... those in memory"},
    {RouteId::kOllamaShow, "POST", "/api/show", true, "Describe one model, in Ollama's form"},
    {RouteId::kOllamaVersion, "GET", "/api/version", false, "Version of Ollama's API"},
    {RouteId::kLoadAdapter, "POST", "/v1/load_lora_adapter", true, "Load an adapter, as with vLLM",
     true},
    {RouteId::kUnloadAdapter, "POST", "/v1/unload_lora_adapter", true,
     "Unload an adapter, as with vLLM", true},
    {RouteId::kLoadPinnedAdapter, "POST", "/load_lora_adapter", true,
     "Load an adapter, as with SGLang", true},
    {RouteId::kUnloadNamedAdapter, "POST", "/unload_lora_adapter", true,
     "Unload an adapter, as with SGLang", true},
    {RouteId::kBaseAdapters, "GET", "/lora-adapters", true,
     "The adapters given at start, and their scales in answers of the base model"},
    {RouteId::kSetBaseAdapters, "POST", "/lora-adapters", true,
     "Set those scales, as with llama.cpp", true},
    {RouteId::kHealth, "GET", "/health", false, "Whether the engine makes progress"},
    {RouteId::kReady, "GET", "/ready", false, "Whether requests are accepted"},
    {RouteId::kReady, "GET", "/health_generate", false, "The same, where SGLang has it"},
    {RouteId::kMetrics, "GET", "/metrics", false, "Figures for Prometheus"},
    {RouteId::kDebugRequests, "GET", "/debug/requests", true, "What happened to requests", true},
    {RouteId::kDebugRequest, "GET", "/debug/requests/{id}", true, "... to one, step by step", true},
    {RouteId::kVersion, "GET", "/version", false, "Version of the server"},
    {RouteId::kOpenApi, "GET", "/openapi.json", false, "This API as an OpenAPI document"},
    {RouteId::kStats, "GET", "/debug/stats", true, "What the server does now", true},
    {RouteId::kTeiRoot, "POST", "/", true,
     "/embed, /predict or /similarity, for clients that know an address alone"},
    {RouteId::kIndex, "GET", "/", false, "The web page; for other than browsers, what this is"},
};

// Ids that this server makes have no slash; names of models, and ids that clients chose, may have
// some at the end of a path.
constexpr std::string_view kWithSlashes[] = {"/v1/models/", "/debug/requests/"};

bool MayHaveSlashes(std::string_view before) {
  return std::find(std::begin(kWithSlashes), std::end(kWithSlashes), before) !=
         std::end(kWithSlashes);
}

bool PathMatches(std::string_view pattern, std::string_view path, RouteMatch* match) {
  std::string_view* parameter = &match->parameter;
  const std::string_view whole = pattern;
  while (true) {
    const size_t open = pattern.find('{');
    const std::string_view text = pattern.substr(0, open);
    if (!path.starts_with(text)) return false;
    path.remove_prefix(text.size());
    if (open == std::string_view::npos) return path.empty();
    pattern.remove_prefix(pattern.find('}') + 1);
    const bool is_rest = pattern.empty() && MayHaveSlashes(whole.substr(0, open));
    const size_t end = is_rest ? path.size() : std::min(path.find('/'), path.size());
    if (end == 0) return false;
    *parameter = path.substr(0, end);
    path.remove_prefix(end);
    parameter = &match->second_parameter;
  }
}

}  // namespace

std::span<const Route> Routes() { return kRoutes; }

const Route* RouteNamed(std::string_view pattern) {
  auto found = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                            [pattern](const Route& route) { return route.pattern == pattern; });
  return found == std::end(kRoutes) ? nullptr : found;
}

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  if (method == "HEAD") method = "GET";
  RouteMatch match;
  const bool is_pattern = RouteNamed(path) != nullptr;
  for (const Route& route : kRoutes) {
    if (is_pattern && route.pattern != path) continue;
    RouteMatch found;
    if (!PathMatches(route.pattern, path, &found)) continue;
    found.route = &route;
    if (route.method == method) return found;
    if (!match.allow.empty()) match.allow.append(", ");
    match.allow.append(route.method);
    if (route.method == "GET") match.allow.append(", HEAD");
  }
  if (!match.allow.empty()) match.allow.append(", OPTIONS");
  return match;
}

}  // namespace heddle::server
