// Finite automata over Unicode code points, with calls of grammar rules as further symbols. A
// rule's body is compiled to one before code points become bytes, and JSON Schema's combined
// conditions (a pattern, a length and excluded keys) are computed with their algebra.
//
// Both kinds of automata start in state 0. Thread-safety: values.
// Sources: Thompson 1968 (NFA), Rabin and Scott 1959 (subset construction, products), Moore 1956
// (minimisation by partition refinement).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/budget.h"
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

  bool IsEmpty() const;                          // whether it accepts nothing. O(edges)
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

// Limit on the edges of a machine and of its source; each takes 12 bytes, some of them several
// times while a grammar is compiled.
inline constexpr size_t kMaxEdges = size_t{1} << 22;

// RESOURCE_EXHAUSTED beyond `max_states` states, kMaxEdges edges, or a proportional bound of work.
absl::StatusOr<StateMachine> Determinize(const Nfa& nfa, int32_t max_states,
                                         Budget* budget = nullptr);

Nfa ToNfa(const StateMachine& machine);

// Removes states that are unreachable or accept nothing (state 0 stays).
StateMachine Trim(const StateMachine& machine);

// An equivalent machine with the fewest states, or with few if it is large. If the budget is over,
// the result is arbitrary: check the budget's status.
StateMachine Minimize(const StateMachine& machine, Budget* budget = nullptr);

// For machines without calls. RESOURCE_EXHAUSTED beyond `max_states` states.
absl::StatusOr<StateMachine> Intersect(const StateMachine& a, const StateMachine& b,
                                       int32_t max_states, Budget* budget = nullptr);
// All texts that `machine` does not accept. REQUIRES: no calls. As Minimize if the budget is over.
StateMachine Complement(const StateMachine& machine, Budget* budget = nullptr);

// Accepts texts of min to max code points of any kind; max < 0: unbounded.
StateMachine AnyTextOfLength(int32_t min, int32_t max);

}  // namespace heddle::engine::grammar
