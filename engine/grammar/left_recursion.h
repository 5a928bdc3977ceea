// Rewrites rules that begin with a call of themselves, perhaps by way of others, which a matcher
// could follow for ever. Internal to compile.cc.
//   A = A t | b           becomes  A = b t*
//   A = B | c,  B = A t   becomes  A = B | c,  B = c t t*
// Source: Aho, Sethi, Ullman, "Compilers", algorithm 4.1, for machines in place of productions.
// Thread-safety: pure function.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/grammar/budget.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// `rules` are the numbers of those in use, `machines` are by number. What a rule calls behind
// another one that may be empty, and more than 64 rules that begin with each other, are left as
// they are. RESOURCE_EXHAUSTED: the machines would have more
// than `max_states` states in all, or one of them more than kMaxStates.
absl::Status RemoveLeftRecursion(std::span<const size_t> rules, size_t max_states,
                                 std::vector<StateMachine>* machines, Budget* budget);

}  // namespace heddle::engine::grammar
