// Which sets of characters a grammar reads as running text, for token_slices.h to sort the
// vocabulary by. A guess: what a state does read is found out in text_runs.h.
#pragma once

#include <span>
#include <vector>

#include "engine/grammar/code_points.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// Sets of kMinRunCharacters or more that lead from a state to one other and on from there; those of
// most states, and of loops, up to kMaxCharacterSets of them; larger sets first. `machines` are
// those of the rules, by number; without states: a rule that is not used.
std::vector<CodePointSet> FindCharacterSets(std::span<const StateMachine> machines);

// Digits and hexadecimal digits are few: a walk over the tokens that begin with them is short.
inline constexpr int64_t kMinRunCharacters = 24;
inline constexpr size_t kMaxCharacterSets = 12;

}  // namespace heddle::engine::grammar
