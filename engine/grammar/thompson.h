// Compiles expressions to finite automata.
#pragma once

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// The minimal machine of one expression; calls of rules stay symbols. RESOURCE_EXHAUSTED, naming
// the limit, if it would have more than kMaxStates states or too many edges.
absl::StatusOr<StateMachine> MachineOf(const Grammar& grammar, ExprId expr,
                                       Budget* budget = nullptr);

}  // namespace heddle::engine::grammar
