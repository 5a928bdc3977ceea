// Look-ahead in regular expressions: an expression of the kind kAhead is a condition on all that
// follows it, to the end of the text. Here conditions become intersections with what follows.
#pragma once

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// The machine of an expression that ends where the text ends. `grammar` gets further expressions.
// INVALID_ARGUMENT for a look-ahead in a group that is repeated, and for ^ behind one.
absl::StatusOr<StateMachine> MachineOfWhole(Grammar* grammar, ExprId expr, Budget* budget);

}  // namespace heddle::engine::grammar
