// Guesses which sets of characters a grammar reads as running text, for token_slices.h to sort the
// vocabulary by. text_runs.h determines what a state does read.
#pragma once

#include <span>
#include <vector>

#include "engine/grammar/code_points.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// Sets of kMinRunCharacters or more that lead from a state to one other and on from there: those of
// most states, and of loops, at most kMaxCharacterSets of them, larger ones first. `machines` are
// those of the rules, by number; an unused rule has no states. If the budget is over, the result
// has fewer sets.
std::vector<CodePointSet> FindCharacterSets(std::span<const StateMachine> machines,
                                            Budget* budget = nullptr);

// Smaller sets, such as digits, are left out: a walk over the tokens that begin with them is short.
inline constexpr int64_t kMinRunCharacters = 24;
inline constexpr size_t kMaxCharacterSets = 12;

}  // namespace heddle::engine::grammar
