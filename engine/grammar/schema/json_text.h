// The grammar of JSON's strings.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// The JSON string contents, between the quotes, of the texts of `machine`: quotes, backslashes and
// control characters are escaped in the shortest way, all else is unchanged, calls as well.
absl::StatusOr<StateMachine> InJsonString(const StateMachine& machine, Budget* budget = nullptr);

// The string with its quotes. `utf8` is well-formed.
std::string JsonString(std::string_view utf8);

// One character of a JSON string that is not plain ASCII: beyond ASCII, or written as an escape
// (surrogates only in pairs).
ExprId SpecialStringCharacter(Grammar* grammar);
// The characters that are written as themselves in one byte.
CodePointSet PlainStringCharacters();

}  // namespace heddle::engine::grammar
