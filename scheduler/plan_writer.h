// Writes sequences into a StepPlan: rows, slots, spans, samples and scores as engine/step.h wants
// them. Decides nothing.
#pragma once

#include <cstdint>

#include "engine/step.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

// Appends the next `num_planned` tokens of `sequence`, whose table already counts them, and the
// scores that its request wants of these rows. Returns the plan's row of the last one.
// Both functions tell the executor of a sequence that it has not heard of (and set `begun`).
int32_t WriteSlice(Sequence* sequence, int32_t page_tokens, engine::StepPlan* plan);

// Appends the draw, from `row`, of the token after the last one of `sequence`.
void WriteSample(Sequence* sequence, int32_t row, engine::StepPlan* plan);

}  // namespace heddle::scheduler
