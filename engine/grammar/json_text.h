// How JSON writes strings, as grammar.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// What stands between the quotes for the texts of `machine`: quotes, backslashes and control
// characters escaped in the shortest way, everything else as it is. REQUIRES: no calls.
absl::StatusOr<StateMachine> InJsonString(const StateMachine& machine);

// With quotes. `utf8` is well-formed.
std::string JsonString(std::string_view utf8);

// One character of a JSON string that is not plain ASCII: beyond ASCII, or written as an escape
// (surrogates only in pairs).
ExprId SpecialStringCharacter(Grammar* grammar);
// Characters that stand for themselves in one byte.
CodePointSet PlainStringCharacters();

}  // namespace heddle::engine::grammar
