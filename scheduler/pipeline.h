// How a pipeline's work is spread over the steps that it has in flight, so that all stages have
// one.
//
// Streams: a sequence cannot run again before its token is drawn, so that steps share out the
// streams evenly: as many groups as stages. A group more than another is a bubble in each round.
// Prompts: chunks of them follow each other through the stages. Where all stages are equally fast,
// they take as long as all chunks one after the other and the longest chunk n - 1 times more,
// whatever the order; so chunks take equally long, as of m chunks n stages are busy for m of m + n
// - 1 turns. Source: Narayanan et al., "PipeDream", 2019 (bubbles); Guo et al., "gLLM", 2025
// (chunks by what waits); Conway, Maxwell and Miller, "Theory of Scheduling", 1967 (flow shops).
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"

namespace heddle::scheduler {

// Rows of fewer are computed more slowly (docs/benchmarks/parallel.md).
inline constexpr int32_t kLeastPipelineRows = 48;

// The prompt rows of a step where nothing is known of the machine. `prompt_rows`: of the prompts
// that are being read or wait, those done included, so that it stays the same while they are read.
// Each step has an eighth of a stage's part, at least kLeastPipelineRows. REQUIRES: stages >= 1.
int32_t PipelineRows(int64_t prompt_rows, int32_t stages);

// The number of chunks with which prompts whose rows take `rows_us` in the slowest stage, or on the
// slowest link, are read soonest if each step takes `step_us` more: eight to 32 for each stage.
// REQUIRES: stages >= 2, rows_us > 0, step_us >= 0.
double PipelineChunks(double rows_us, double step_us, int32_t stages);

// Takes out of `*decodes`, running sequences that could run one token each, those that later steps
// run: `in_flight` others wait for their tokens, and each step has its part of all. It keeps the
// first one, which gets pages when nobody else does, and those that have drawn longest ago, in the
// order of service. Sets num_planned of the others to 0.
void KeepGroup(int32_t in_flight, int32_t stages, std::vector<Sequence*>* decodes);

}  // namespace heddle::scheduler
