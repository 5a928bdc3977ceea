// Decimal numbers between bounds and divisible by a step, as finite automata over their digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

// An exact decimal: sign, whole part without leading zeros ("0" for none), fraction without
// trailing zeros.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  bool IsZero() const { return whole == "0" && fraction.empty(); }
  // Parses JSON's notation. INVALID_ARGUMENT for exponents beyond 40.
  static absl::StatusOr<Decimal> Parse(std::string_view text);
  std::string ToString() const;
};

// < 0, 0, > 0 as a is below, equal to or above b.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  bool integer = false;     // no fraction is written, not even .0
  bool fractional = false;  // numbers that are no integers alone
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
  std::optional<Decimal> multiple_of;  // positive
  std::vector<Decimal> excluded;

  // Whether only the kind of number counts.
  bool Unbounded() const { return !min && !max && !multiple_of && excluded.empty(); }
};

// The reason why a range without numbers has none.
std::string WhyEmpty(const NumberRange& range);

// The JSON numbers of the range: no leading zeros, no "-0". Without bounds, whole parts have at
// most 18 digits (they fit into 64 bits) and fractions 16 (more than a double distinguishes);
// exponents are written only without bounds and step.
// INVALID_ARGUMENT: the step is too fine for a machine of bounded size.
absl::StatusOr<StateMachine> NumberMachine(const NumberRange& range, Budget* budget = nullptr);

}  // namespace heddle::engine::grammar
