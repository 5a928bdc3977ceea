// Measures what drafts gain on answers that the model writes itself, for drafters that look at the
// model and not at a text alone: requests with the same prompt run through an engine loop, as in
// serving. Thread-safety: none; only this thread uses the executor meanwhile.
#pragma once

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "server/cli/draft_bench.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

// Has the model write the rest of the text's length behind shape.prompt_tokens of it, greedily,
// shape.batch times at once. The time is that from the first token of an answer to the last one of
// all. An error is the executor's, or says what does not fit.
absl::StatusOr<DraftTiming> WriteAnswers(engine::Executor& executor, const DraftBenchShape& shape,
                                         const SpeculationOptions& speculation);

}  // namespace heddle::server
