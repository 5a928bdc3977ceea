// A request in the form that its answer needs, whichever API it came by.
//
// Each entry of a prompt list is one GenerationRequest with n branches, so that its pages are
// shared; choice i of the answer is branch i % n of prompt i / n, as OpenAI numbers them (with
// best_of: the i % n-th best).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/adapters/adapter_names.h"
#include "server/answer/sample_search.h"
#include "server/generation.h"
#include "server/parallel/parallel_format.h"
#include "server/text/text_codec.h"
#include "server/toolcalls/output_syntax.h"

namespace heddle::server {

// The field name under which clients get a model's reasoning.
enum class ReasoningField : uint8_t { kReasoningContent, kReasoning, kBoth, kNone };

// The model and the adapters that answer a request.
struct ModelChoice {
  std::string shown;                    // name of the model in the answer
  std::vector<ScaledAdapter> adapters;  // LoRA adapters, by name; empty: the base model
};

enum class Endpoint : uint8_t { kCompletion, kChat };

inline constexpr size_t kMaxWarningBytes = 1024;

struct ApiRequest {
  Endpoint endpoint = Endpoint::kCompletion;
  ModelChoice model;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  int32_t n = 1;
  int32_t min_tokens = 0;
  int32_t prompt_logprobs = -1;  // alternatives per prompt token; -1: no prompt logprobs
  int32_t best_of = 1;  // branches per prompt; the n with the highest mean logprob are returned
  OutputSyntax syntax;  // the syntax of the answer's text; without tools if none are offered
  ToolSet tools;        // tools offered
  bool begins_in_reasoning = false;  // the prompt ends inside of reasoning
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool parallel_tool_calls = true;  // false: one call ends the answer
  bool names_call = false;          // tool_choice names the function
  std::vector<std::string> stop;
  std::vector<TokenId>
      stop_token_ids;         // the client's, without the model's own that count as its end
  bool keep_stop = false;     // what ends an answer is part of it
  bool keep_special = false;  // special tokens have text
  int32_t beam_width = 0;     // of a beam search; 0: tokens are drawn
  double length_penalty = 1;
  bool keep = false;              // the answer's choices stay as branches (server/branches/)
  std::string common;             // of a kept one: JSON members of all requests of its tree
  SearchOptions search;           // best_of is its number of samples
  ParallelOptions parallel;       // of a model that thinks in branches
  bool return_token_ids = false;  // the ids of prompt and answer are sent, too
  std::vector<GenerationRequest> generations;  // ids unset
  std::vector<std::string> prompt_texts;       // with echo only; one per generation
  std::string warning;                         // sent in a header; empty: none

  // All branches of all generations. Branch b of prompt p has number p * best_of + b.
  size_t num_branches() const { return generations.size() * static_cast<size_t>(best_of); }

  // Adds to the warning what is not in it yet, as a header can carry it: at most kMaxWarningBytes
  // in all, and what is no printable ASCII as a question mark.
  void Warn(std::string_view text);
};

}  // namespace heddle::server
