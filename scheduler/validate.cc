// Refuses requests that a scheduler could never run.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scheduler/scheduler.h"

namespace heddle::scheduler {

namespace {

int32_t PagesOf(const AdapterUse& adapter) {
  return adapter.id == engine::AdapterId{} ? 0 : adapter.num_pages;
}

// Whether the adapter is one that this scheduler can run beside one sequence at all.
absl::Status ValidateAdapter(const AdapterUse& adapter, const SchedulerOptions& options) {
  if (adapter.id == engine::AdapterId{}) return absl::OkStatus();
  if (options.adapter_slots == 0) {
    return absl::InvalidArgumentError("This server runs no LoRA adapters.");
  }
  if (!std::isfinite(adapter.scale)) {
    return absl::InvalidArgumentError("The adapter's scale is not a finite number.");
  }
  if (adapter.num_pages <= 0 || Scheduler::MaxContext(options, adapter.num_pages) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("The adapter takes ", adapter.num_pages,
                                                   " pages; this server has ", options.num_pages,
                                                   " and needs some of them for the sequence."));
  }
  return absl::OkStatus();
}

// Whether the model's layers can read parts that were computed side by side.
absl::Status ValidateParts(const GenerationRequest& request, const SchedulerOptions& options) {
  if (request.parts.empty()) return absl::OkStatus();
  if (absl::Status status = Scheduler::CanJoin(options); !status.ok()) return status;
  if (request.parts.size() > kMaxContextParts ||
      request.parts.back().begin >= static_cast<int32_t>(request.prompt.size())) {
    return absl::InvalidArgumentError(absl::StrCat("The prompt has ", request.parts.size(),
                                                   " parts; at most ", kMaxContextParts,
                                                   " are allowed, none of them empty."));
  }
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const int32_t segment = request.parts[i].segment;
    const int32_t most = i == 0 ? 0 : std::max(options.segments - 1, 0);
    if (segment >= 0 && segment <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat("Part ", i, " has the segment ", segment,
                                                   "; at most ", most, " is allowed there."));
  }
  if (request.pooling != engine::Pooling::kNone) {
    return absl::InvalidArgumentError("A joined prompt has no embedding.");
  }
  const bool scores_parts =
      request.prompt_logprobs >= 0 && request.first_score < request.parts.back().begin;
  if (!scores_parts) return absl::OkStatus();
  return absl::InvalidArgumentError("Only the last part of a joined prompt has log-probabilities.");
}

// Whether the workers can see each other, and the pool and the context hold all of them.
absl::Status ValidateWorkers(const GenerationRequest& request, const SchedulerOptions& options) {
  if (request.workers.empty()) return absl::OkStatus();
  if (absl::Status status = Scheduler::CanWatch(options); !status.ok()) return status;
  const bool is_plain = request.parts.empty() && request.pooling == engine::Pooling::kNone &&
                        request.prompt_logprobs < 0 && request.keep == ContextId{} &&
                        request.max_tokens > 0;
  if (!is_plain) {
    return absl::InvalidArgumentError(
        "Workers have a prompt in plain order and write answers: no parts, no scores, no context.");
  }
  const size_t n = request.workers.size();
  if (n < 2 || static_cast<int64_t>(n) != request.num_branches) {
    return absl::InvalidArgumentError(absl::StrCat(
        n, " blocks are begun for ", request.num_branches, " workers; there must be two or more."));
  }
  const int32_t page = options.page_tokens;
  const auto pages_of = [page](int64_t tokens) { return (tokens + page - 1) / page; };
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  int64_t positions = prompt;
  int64_t pages = pages_of(prompt);
  for (const std::vector<TokenId>& block : request.workers) {
    if (block.empty()) return absl::InvalidArgumentError("A worker's block begins with no token.");
    const int64_t longest = static_cast<int64_t>(block.size()) + request.max_tokens;
    positions += longest;
    pages += pages_of(longest);
  }
  if (positions > options.max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("The prompt and the blocks of all workers may become ", positions,
                     " tokens; the model's context holds ", options.max_context, "."));
  }
  pages = pages * static_cast<int64_t>(options.windows.size()) + PagesOf(request.adapter);
  if (pages <= options.num_pages) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("The prompt and the blocks of all workers may take ", pages,
                   " pages of KV memory together; this server has ", options.num_pages, "."));
}

// Whether the model reads texts whole and the request asks for what comes of them.
absl::Status ValidateWhole(const GenerationRequest& request, const SchedulerOptions& options) {
  const auto places = static_cast<int32_t>(request.prompt.size());
  if (request.second_begin < -1 || request.second_begin >= places) {
    return absl::InvalidArgumentError(absl::StrCat("second_begin is ", request.second_begin,
                                                   "; the prompt has ", places, " tokens."));
  }
  if (!options.whole_prompts) return absl::OkStatus();
  if (request.pooling == engine::Pooling::kNone || request.max_tokens != 0 ||
      !request.parts.empty()) {
    return absl::InvalidArgumentError("This model is an encoder: it writes no text.");
  }
  if (places <= options.max_step_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("The prompt has ", places, " tokens; at most ",
                                                 options.max_step_tokens, " are read at once."));
}

}  // namespace

absl::Status Scheduler::CanJoin(const SchedulerOptions& options) {
  if (options.state_groups > 0) {
    return absl::InvalidArgumentError(
        "The recurrent layers of this model keep one state of a sequence, and states of branches "
        "do not merge: join branches by kind 'text'.");
  }
  if (options.counts_positions() && !options.reads_pieces) {
    return absl::InvalidArgumentError(
        "Layers of this model see a sliding window, which they do not count by the positions of "
        "branches side by side: join branches by kind 'text'.");
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CanWatch(const SchedulerOptions& options) {
  if (options.state_groups > 0) {
    return absl::InvalidArgumentError(
        "The recurrent layers of this model keep one state of a sequence: workers cannot see each "
        "other.");
  }
  if (options.pipeline_stages > 1) {
    return absl::InvalidArgumentError(
        "This server's ranks are a pipeline, whose steps workers cannot share: they need --pp 1.");
  }
  if (options.turns_queries) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "Workers see each other at positions that change, for which queries are rotated anew: this "
      "model's layers do not do that.");
}

absl::Status Scheduler::Validate(const GenerationRequest& request,
                                 const SchedulerOptions& options) {
  if (absl::Status status = ValidateAdapter(request.adapter, options); !status.ok()) return status;
  const int32_t adapter_pages = PagesOf(request.adapter);
  if (absl::Status status = ValidateParts(request, options); !status.ok()) return status;
  if (absl::Status status = ValidateWorkers(request, options); !status.ok()) return status;
  const ContextLayout layout(request.parts, options.page_tokens);
  const int32_t max_context =
      SchedulerLimits::MaxContext(options, adapter_pages, layout.first_end());
  int32_t max_running = std::min(options.max_step_seqs, options.max_step_tokens);
  if (request.prompt.empty()) return absl::InvalidArgumentError("The prompt has no tokens.");
  if (absl::Status status = ValidateWhole(request, options); !status.ok()) return status;
  if (request.max_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, "; it must be at least 0."));
  }
  if (request.first_score < 0 ||
      request.first_score >= static_cast<int32_t>(request.prompt.size())) {
    return absl::InvalidArgumentError(absl::StrCat("first_score is ", request.first_score,
                                                   "; the prompt has ", request.prompt.size(),
                                                   " tokens."));
  }
  int32_t to_generate = request.max_tokens > 0 ? 1 : 0;
  const int32_t places = layout.PlaceOf(static_cast<int32_t>(request.prompt.size()));
  if (places + to_generate > max_context) {
    const char* into = max_context == options.max_context ? " fit into the model's context."
                       : adapter_pages > 0
                           ? " fit into the KV memory of this server beside the adapter."
                           : " fit into the KV memory of this server.";
    return absl::InvalidArgumentError(absl::StrCat("The prompt has ", places, " tokens; at most ",
                                                   std::max(0, max_context - to_generate), into));
  }
  if (request.num_branches < 1 || request.num_branches > max_running) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", request.num_branches, "; it must be between 1 and ", max_running,
                     ", the number of sequences that this server runs at a time."));
  }
  if (!request.sampling_of.empty() &&
      static_cast<int32_t>(request.sampling_of.size()) != request.num_branches) {
    return absl::InvalidArgumentError(absl::StrCat("sampling_of has ", request.sampling_of.size(),
                                                   " entries for ", request.num_branches,
                                                   " branches."));
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
