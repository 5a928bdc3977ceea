// Measures what drafts gain on a text: it is replayed as the answer of a model, so that acceptance
// is the text's and step times are the machine's. The model's own tokens are not looked at; keys
// and values are whatever the pool holds. Thread-safety: none; only this thread uses the executor
// meanwhile.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "scheduler/draft_budget.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

struct DraftBenchShape {
  int32_t batch = 1;                      // sequences, all with the same text
  std::span<const engine::TokenId> text;  // the prompt, then the answer
  int32_t prompt_tokens = 0;              // of `text`; at least 1
};

struct DraftTiming {
  double seconds = 0;  // of all steps, drafting included
  int64_t steps = 0;
  scheduler::DraftBudgetStats drafts;
};

// Words, single signs and line breaks, numbered by their hashes: about the tokens of a text where
// there is no tokenizer. Ids are below `vocab`.
std::vector<engine::TokenId> WordsAsTokens(std::string_view text, int32_t vocab);

// Replays the answers once for each of `ways`: with drafts, or step by step if it is not on. The
// ways take turns of a few steps, each with sequences of its own, so that whatever else the machine
// does slows all of them. INVALID_ARGUMENT: the text does not fit into the executor's context, or
// so many times into its pool.
absl::StatusOr<std::vector<DraftTiming>> ReplayText(engine::Executor& executor,
                                                    const DraftBenchShape& shape,
                                                    std::span<const SpeculationOptions> ways);

}  // namespace heddle::server
