// Writes sequences into a StepPlan: rows, slots, spans, samples and scores in the form that
// engine/step.h specifies. It decides nothing.
#pragma once

#include <cstdint>

#include "engine/step.h"
#include "scheduler/scheduler_limits.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

// The kind of the next `num_planned` tokens of `sequence`, whose table already counts them.
engine::SliceKind SliceKindOf(const Sequence& sequence);

// Appends the next `num_planned` tokens of `sequence`, whose table already counts them, and the
// scores that its request wants of these rows. Returns the plan's row of the last one.
// Both functions announce a new sequence to the executor (and set `begun`); its grammar goes to
// `locals`.
int32_t WriteSlice(Sequence* sequence, const SchedulerLimits& limits, engine::StepPlan* plan,
                   engine::StepLocals* locals);

// Appends the slots of the last `num_ahead` positions of the tables, and sets `ahead_slot`.
void WriteAheadSlots(Sequence* sequence, int32_t page_tokens, engine::StepPlan* plan);

// Appends the draw from row `row` of the token after the last one of `sequence`, and from the rows
// behind it of those after the proposed ones that are planned.
void WriteSample(Sequence* sequence, int32_t row, engine::StepPlan* plan,
                 engine::StepLocals* locals);

}  // namespace heddle::scheduler
