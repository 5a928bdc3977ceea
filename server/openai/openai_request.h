// From the JSON text of a request to GenerationRequests. All that a client can get wrong is found
// here, before anything is queued.
//
// Pure: no socket, no clock; randomness comes in as an argument. Any thread. One entry of `prompt`
// is one GenerationRequest with n branches, so that its pages are shared; choice i of the answer is
// branch i % n of prompt i / n, as OpenAI numbers them (with best_of: the i % n-th best).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/policy.h"
#include "server/generation.h"
#include "server/openai/text_codec.h"

namespace heddle::server {

// The model as the API shows it.
struct ServedModel {
  std::string id;                    // what clients call it
  std::vector<std::string> aliases;  // also accepted
  std::string owned_by = "heddle";
  std::string fingerprint;  // system_fingerprint: changes when the same seed may answer differently
  int64_t created = 0;      // seconds since 1970
  int32_t max_context = 0;  // positions per sequence
  // From the model's generation_config: temperature, top_k, top_p, min_p, repetition_penalty.
  engine::SamplingParams defaults;
  engine::Pooling pooling = engine::Pooling::kLast;  // of embeddings
  int32_t embedding_size = 0;                        // numbers of one
};

// 4 stop strings as OpenAI has them; the other bounds keep one request from being a flood.
inline constexpr size_t kMaxStopStrings = 4;
inline constexpr size_t kMaxStopBytes = 4096;
inline constexpr size_t kMaxChoices = 512;  // prompts times n

// Under which name clients get a model's reasoning.
enum class ReasoningField : uint8_t { kReasoningContent, kReasoning, kBoth, kNone };

// What an operator decides about requests.
struct RequestPolicy {
  bool clamp_max_tokens = true;       // false: beyond the context is an error
  bool ignore_unknown_fields = true;  // false: they are errors
  scheduler::PolicyKind scheduling = scheduler::PolicyKind::kFcfs;
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
};

struct RequestContext {
  const ServedModel* model = nullptr;
  const TextCodec* codec = nullptr;
  uint64_t random_seed = 0;  // used where the client gives no seed
  RequestPolicy policy;
  uint64_t tenant = 0;  // whose API key came with it; 0: there are none
  // Whether the caller's thread has others to serve: what may take longer than reading a body of
  // this size, such as compiling a grammar, is left with TakesLong.
  bool quick = false;
};

// How reading a request ends where the context is quick and the request is not: it is to be read
// again without haste. Never meant for a client.
absl::Status TakesLong();
bool IsTakesLong(const absl::Status& status);

enum class Endpoint : uint8_t { kCompletion, kChat };

struct ApiRequest {
  Endpoint endpoint = Endpoint::kCompletion;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  int32_t n = 1;
  int32_t min_tokens = 0;
  int32_t prompt_logprobs = -1;  // alternatives per prompt token; -1: none asked for
  int32_t best_of = 1;  // branches per prompt; the n with the highest mean logprob are returned
  OutputSyntax syntax;  // what to look for in the text; no tools where none are offered
  ToolSet tools;        // on offer
  bool begins_in_reasoning = false;  // the prompt has opened it
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool parallel_tool_calls = true;  // false: one call ends the answer
  bool names_call = false;          // tool_choice names the function
  std::vector<std::string> stop;
  std::vector<GenerationRequest> generations;  // ids unset
  std::vector<std::string> prompt_texts;       // with echo only; one per generation
  std::string warning;                         // for a header; empty: none

  // Branches of all generations. Branch b of prompt p has number p * best_of + b.
  size_t num_branches() const { return generations.size() * static_cast<size_t>(best_of); }
};

// INVALID_ARGUMENT or NOT_FOUND, with param and code for the client (api_error.h).
absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view body,
                                        const RequestContext& context);

}  // namespace heddle::server
