#include "engine/grammar/left_recursion.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {
namespace {

// Rules of one group that are written out. Each is written into all others, so that work grows with
// the square of their number; larger groups are left alone, and then refused.
constexpr size_t kMaxGroup = 64;

const CallEdge* CallAtStart(const StateMachine& machine, size_t rule) {
  const std::vector<CallEdge>& calls = machine.states[0].calls;
  const auto call = std::find_if(calls.begin(), calls.end(), [rule](const CallEdge& edge) {
    return static_cast<size_t>(edge.rule) == rule;
  });
  return call == calls.end() ? nullptr : &*call;
}

// The machine with a copy of its start, to which all edges lead that led to the start. The number
// of that copy is the last one.
Nfa WithFreshStart(const StateMachine& machine) {
  Nfa nfa = ToNfa(machine);
  const auto old_start = static_cast<int32_t>(nfa.states.size());
  nfa.states.push_back(nfa.states[0]);
  for (NfaState& state : nfa.states) {
    for (CharEdge& edge : state.chars) {
      if (edge.target == 0) edge.target = old_start;
    }
    for (CallEdge& edge : state.calls) {
      if (edge.target == 0) edge.target = old_start;
    }
  }
  return nfa;
}

void RemoveCallAtStart(size_t rule, Nfa* nfa) {
  std::erase_if(nfa->states[0].calls,
                [rule](const CallEdge& edge) { return static_cast<size_t>(edge.rule) == rule; });
}

absl::Status Store(const Nfa& nfa, Budget* budget, StateMachine* machine) {
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine result, Determinize(nfa, kMaxStates, budget));
  *machine = Minimize(result, budget);
  return StatusOf(budget);
}

// Removes the rule's call of itself at the start, A = A t, and appends t* to every end. Its other
// calls of itself stay.
absl::Status RemoveSelfCall(size_t rule, Budget* budget, StateMachine* machine) {
  const CallEdge* self = CallAtStart(*machine, rule);
  if (self == nullptr) return absl::OkStatus();
  const int32_t tail = self->target;
  Nfa nfa = WithFreshStart(*machine);
  const auto old_start = static_cast<int32_t>(nfa.states.size()) - 1;
  RemoveCallAtStart(rule, &nfa);
  for (NfaState& state : nfa.states) {
    if (state.accepting) state.epsilons.push_back(tail == 0 ? old_start : tail);
  }
  return Store(nfa, budget, machine);
}

// Replaces a call at the start by the machine that it calls.
absl::Status WriteOut(size_t rule, const StateMachine& called, Budget* budget,
                      StateMachine* machine) {
  const int32_t target = CallAtStart(*machine, rule)->target;
  Nfa nfa = WithFreshStart(*machine);
  const auto old_start = static_cast<int32_t>(nfa.states.size()) - 1;
  RemoveCallAtStart(rule, &nfa);
  const auto base = static_cast<int32_t>(nfa.states.size());
  nfa.states[0].epsilons.push_back(base);
  for (NfaState state : ToNfa(called).states) {
    HEDDLE_RETURN_IF_ERROR(
        Spend(budget, 1 + static_cast<int64_t>(state.chars.size() + state.calls.size())));
    for (CharEdge& edge : state.chars) edge.target += base;
    for (CallEdge& edge : state.calls) edge.target += base;
    if (std::exchange(state.accepting, false)) {
      state.epsilons.push_back(target == 0 ? old_start : target);
    }
    nfa.states.push_back(std::move(state));
  }
  return Store(nfa, budget, machine);
}

// Finds groups of rules that lead to each other by calls at their starts (Tarjan 1972).
class Groups {
 public:
  Groups(const std::vector<StateMachine>& machines, Budget* budget)
      : machines_(machines),
        budget_(budget),
        order_(machines.size(), 0),
        low_(machines.size(), 0) {}

  // Appends the groups that `root` reaches and that are not known yet.
  absl::Status Find(size_t root, std::vector<std::vector<size_t>>* groups) {
    if (order_[root] != 0) return absl::OkStatus();
    struct Visit {
      size_t rule;
      size_t next = 0;
    };
    std::vector<Visit> path;
    const auto enter = [&](size_t rule) {
      order_[rule] = low_[rule] = ++count_;
      open_.push_back(rule);
      path.push_back({rule});
    };
    for (enter(root); !path.empty();) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
      Visit& visit = path.back();
      const size_t rule = visit.rule;
      const std::vector<CallEdge>& calls = machines_[rule].states[0].calls;
      if (visit.next < calls.size()) {
        const auto callee = static_cast<size_t>(calls[visit.next++].rule);
        if (order_[callee] == 0) {
          enter(callee);
        } else {
          low_[rule] = std::min(low_[rule], order_[callee]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) {
        low_[path.back().rule] = std::min(low_[path.back().rule], low_[rule]);
      }
      if (low_[rule] == order_[rule]) groups->push_back(Close(rule));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int32_t kClosed = INT32_MAX;

  std::vector<size_t> Close(size_t first) {
    std::vector<size_t> group;
    do {
      group.push_back(open_.back());
      order_[open_.back()] = kClosed;
      open_.pop_back();
    } while (group.back() != first);
    return group;
  }

  const std::vector<StateMachine>& machines_;
  Budget* const budget_;
  std::vector<int32_t> order_;  // [rules], from 1; 0: not seen
  std::vector<int32_t> low_;    // [rules] the first that is open and reached
  std::vector<size_t> open_;    // seen and in no group yet
  int32_t count_ = 0;
};

}  // namespace

absl::Status RemoveLeftRecursion(std::span<const size_t> rules, size_t max_states,
                                 std::vector<StateMachine>* machines, Budget* budget) {
  size_t num_states = 0;
  std::vector<std::vector<size_t>> groups;
  Groups finder(*machines, budget);
  for (size_t rule : rules) HEDDLE_RETURN_IF_ERROR(finder.Find(rule, &groups));
  for (std::vector<size_t>& group : groups) {
    if (group.size() > kMaxGroup) continue;
    std::sort(group.begin(), group.end());
    for (size_t i = 0; i < group.size(); ++i) {
      StateMachine& machine = (*machines)[group[i]];
      // A rule that is done begins with later ones alone: each is written out once at most.
      for (size_t k = 0; k < i; ++k) {
        HEDDLE_RETURN_IF_ERROR(Spend(budget, 1));
        if (CallAtStart(machine, group[k]) == nullptr) continue;
        HEDDLE_RETURN_IF_ERROR(WriteOut(group[k], (*machines)[group[k]], budget, &machine));
      }
      HEDDLE_RETURN_IF_ERROR(RemoveSelfCall(group[i], budget, &machine));
      num_states += machine.states.size();
      if (num_states > max_states) {
        return absl::ResourceExhaustedError(base::StrCat(
            "without left recursion the grammar needs more than ", max_states, " states"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::grammar
