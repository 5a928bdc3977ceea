// The texts that satisfy conditions on strings, as finite automata. Internal to json_schema.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/schema/value_constraints.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// Over the text itself, without quotes. Bounds on the length that hold anyway cost nothing; others
// multiply the states. Where that would be more than kMaxCountedStates, a lower maximum is taken.
absl::StatusOr<StateMachine> StringMachine(const StringConstraints& constraints,
                                           SchemaDocument* document);

inline constexpr int64_t kMaxCountedStates = 1 << 14;

// The texts of `machine` with min to max code points (max < 0: unbounded), as above. REQUIRES: no
// calls.
absl::StatusOr<StateMachine> BoundLength(const StateMachine& machine, int32_t min, int32_t max,
                                         Budget* budget);

// All texts of `machine`, if there are at most `max_texts`. REQUIRES: no calls.
std::optional<std::vector<std::string>> FewTexts(const StateMachine& machine, size_t max_texts);

}  // namespace heddle::engine::grammar
