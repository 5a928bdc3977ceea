// Regular expressions, in the syntax that JavaScript, Python and PCRE share, with JavaScript's
// meaning: alternatives, groups (capturing or not, named or not), classes, \d \w \s and their
// opposites, \p{L} \p{N} \p{P} \p{S} \p{M} and theirs, anchors, greedy and lazy repeats, and the
// flags i (ASCII letters), s and x, as (?i) at the start or (?i:...). Constructs that are not
// regular (look-around, back references), and word boundaries (\b), are INVALID_ARGUMENT.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

enum class RegexMatch : uint8_t {
  kWhole,   // the expression describes the whole text
  kSearch,  // it is found somewhere in the text, as JSON Schema's `pattern`
};

enum class RegexDialect : uint8_t {
  kEcma,    // \d and \w are ASCII
  kPython,  // \d, \w and \s are Unicode's; a dot is all but \n
};

struct RegexOptions {
  RegexMatch match = RegexMatch::kWhole;
  RegexDialect dialect = RegexDialect::kEcma;
  bool ignore_case = false;
  bool dot_all = false;     // a dot is a line break, too
  bool extended = false;    // white space and comments are none of the expression
  bool has_anchors = true;  // false: ^ and $ are errors
};

struct ParsedRegex {
  StateMachine machine;
  bool is_lazy = false;  // some repeat is lazy, which a whole match does not heed
};

// The matching texts, as a machine without calls. INVALID_ARGUMENT names the position;
// RESOURCE_EXHAUSTED if it would have more than kMaxStates states.
absl::StatusOr<StateMachine> ParseRegex(std::string_view pattern, RegexMatch match,
                                        Budget* budget = nullptr);
absl::StatusOr<ParsedRegex> ParseRegex(std::string_view pattern, const RegexOptions& options,
                                       Budget* budget = nullptr);

}  // namespace heddle::engine::grammar
