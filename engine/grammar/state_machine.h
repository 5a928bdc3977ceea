// Finite automata over Unicode code points, with calls of grammar rules as further symbols: what a
// rule's body is compiled to before bytes come into it, and the algebra of regular languages that
// JSON Schema's combined conditions (pattern and length and not these keys) are computed with.
//
// Both kinds start in state 0. Thread-safety: values.
// Sources: Thompson 1968 (NFA), Rabin and Scott 1959 (subset construction, products), Moore 1956
// (minimisation by partition refinement).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/code_points.h"

namespace heddle::engine::grammar {

struct CharEdge {
  char32_t first;
  char32_t last;
  int32_t target;
  bool operator==(const CharEdge&) const = default;
};

struct CallEdge {
  int32_t rule;
  int32_t target;
  bool operator==(const CallEdge&) const = default;
};

struct MachineState {
  std::vector<CharEdge> chars;  // sorted, disjoint
  std::vector<CallEdge> calls;  // sorted by rule, one per rule
  bool accepting = false;
};

// Deterministic. A machine with no accepting state has an empty language.
struct StateMachine {
  std::vector<MachineState> states;  // not empty

  bool IsEmpty() const;                          // accepts nothing. O(edges)
  bool Accepts(std::u32string_view text) const;  // REQUIRES: no state has calls
};

struct NfaState {
  std::vector<int32_t> epsilons;
  std::vector<int32_t> at_begin;  // epsilons that only the start of the text passes
  std::vector<int32_t> at_end;    // epsilons that only the end of the text passes
  std::vector<CharEdge> chars;    // in any order, may overlap
  std::vector<CallEdge> calls;
  bool accepting = false;
};

struct Nfa {
  std::vector<NfaState> states;  // not empty
};

// RESOURCE_EXHAUSTED beyond `max_states` states or a bound of work in proportion.
absl::StatusOr<StateMachine> Determinize(const Nfa& nfa, int32_t max_states);

Nfa ToNfa(const StateMachine& machine);

// Without states that are not reached or from which nothing is accepted (state 0 stays).
StateMachine Trim(const StateMachine& machine);

// An equivalent machine with the fewest states; for large machines perhaps not the fewest.
StateMachine Minimize(const StateMachine& machine);

// Of machines without calls. RESOURCE_EXHAUSTED beyond `max_states` states.
absl::StatusOr<StateMachine> Intersect(const StateMachine& a, const StateMachine& b,
                                       int32_t max_states);
// All texts that `machine` does not accept. REQUIRES: no calls.
StateMachine Complement(const StateMachine& machine);

// min to max code points of any kind; max < 0: unbounded.
StateMachine AnyTextOfLength(int32_t min, int32_t max);

}  // namespace heddle::engine::grammar
