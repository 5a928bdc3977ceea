// From expressions to finite automata.
#pragma once

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// The minimal machine of one expression; calls of rules stay symbols. RESOURCE_EXHAUSTED, naming
// the bound, if it would have more than kMaxStates states.
absl::StatusOr<StateMachine> MachineOf(const Grammar& grammar, ExprId expr);

}  // namespace heddle::engine::grammar
