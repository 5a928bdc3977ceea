// A generation request as the scheduler sees it: token counts, limits and identities; no text.
// Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/step.h"
#include "scheduler/context_layout.h"

namespace heddle::scheduler {

using engine::TokenId;

// Identity of one request; never reused during the life of the process.
enum class RequestId : uint64_t {};

// Names what a branch has in the cache, beyond the life of its request (kept_contexts.h). 0: none.
enum class ContextId : uint64_t {};

enum class FinishReason : uint8_t {
  kStop,       // an end-of-sequence or stop token was drawn; it is the last token reported
  kLength,     // max_tokens or the end of the context was reached
  kCancelled,  // Cancel was called
  kError,      // the engine failed
};

// A concurrent join of contexts (context_layout.h). Child i has `lengths[i]` tokens, its first `at`
// ones in common with the others; the join has them as JoinParts says, and may have more behind.
struct ContextJoin {
  std::vector<ContextId> children;
  std::vector<int32_t> lengths;
  int32_t at = 0;
  ContextParts parts;
  std::vector<TokenId> tokens;
  ContextId to{};
};

// The LoRA adapter of a request; id 0: the base model.
struct AdapterUse {
  engine::AdapterId id{};
  float scale = 1.0f;     // beside the adapter's own
  int32_t num_pages = 0;  // of the pool, that its factors take
  std::shared_ptr<const engine::AdapterImage> image;
};

// A client's limits on drafts of its answer (engine/draft/). No draft changes the answer.
struct DraftLimits {
  bool off = false;
  int32_t max_tokens = -1;    // per step at most; -1: the server's limit
  int32_t min_tokens = 0;     // shorter drafts are left out
  float min_survival = 0.0f;  // tokens less likely to be right are left out; in [0, 1]
};

struct GenerationRequest {
  RequestId id{};
  std::vector<TokenId> prompt;  // not empty; prompt.size() < max context
  int32_t max_tokens = 16;      // >= 0; 0: prompt logprobs only
  int32_t num_branches = 1;     // n: continuations that share the prompt's pages
  // Branch b draws with seed + b, so that each equals a separate request with that seed.
  engine::SamplingParams sampling;
  // [num_branches], in place of it: that of each branch, with its own seed. Empty: they are alike.
  std::vector<engine::SamplingParams> sampling_of;
  // The grammar of each answer; null: unconstrained.
  std::shared_ptr<engine::grammar::CompiledGrammar> grammar;
  std::vector<TokenId> stop_tokens;  // end-of-sequence ids (unless ignored) and stop_token_ids
  AdapterUse adapter;
  // Prefixes are shared only between requests of the same space (one adapter, one tenant's salt).
  uint64_t cache_space = 0;
  // Asks for the prompt's embedding and nothing else: needs max_tokens 0.
  engine::Pooling pooling = engine::Pooling::kNone;
  int32_t second_begin = -1;     // the first token of the prompt with the type 1; -1: none
  int32_t prompt_logprobs = -1;  // -1: none; n: log-probability of each prompt token, n best
  // Leading pages of the prompt are taken from this context, as far as it has them and has the same
  // tokens. That changes no token of the answer.
  ContextId from{};
  // Each branch b leaves what it has computed as context `keep` + b, unless it fails.
  ContextId keep{};
  // How the prompt's tokens see each other; empty: in plain order. The answer goes on in the last
  // part. Only for models all of whose layers see everything; such a request takes no drafts.
  ContextParts parts;
  // Not empty: the branches are workers that see each other's tokens as they come
  // (scheduler/workers.h); [num_branches] of what each one's block begins with, behind the prompt.
  std::vector<std::vector<TokenId>> workers;
  // With prompt_logprobs: tokens of the prompt before position `first_score` + 1 are not scored,
  // and may come from the cache.
  int32_t first_score = 0;
  DraftLimits draft;
  std::vector<TokenId> prediction;  // what the client expects the answer to be; may be empty
  // The policies' inputs (policy.h); each policy reads its own.
  int32_t priority = 0;     // lower is served earlier
  int64_t deadline_us = 0;  // from the arrival to the whole answer; 0: none
  uint64_t workflow = 0;    // its requests share the first one's deadline; 0: none
  uint64_t tenant = 0;      // the client that its API key stands for; 0: it has none
  // Whose share of the machine it uses (client_shares.h): its tenant's, or else its peer's.
  uint64_t peer = 0;   // stands for the client's address
  uint64_t call = 0;   // the client's call that it is a part of, such as one with several prompts
                       // (call_holds.h, call_order.h); 0: none but its own
  int32_t weight = 1;  // of that client among the others
  // The front end's names for it; not used for decisions.
  std::string label;
  // The branch that it runs, in a tree of branches: "0.2" is the third one forked from "0".
  std::string tree, branch;  // empty: it has none
};

inline uint64_t ClientOf(const GenerationRequest& request) {
  return request.tenant != 0 ? request.tenant : request.peer;
}
// Calls are told apart by the id of one of their requests.
inline uint64_t CallOf(const GenerationRequest& request) {
  return request.call != 0 ? request.call : static_cast<uint64_t>(request.id);
}

}  // namespace heddle::scheduler
