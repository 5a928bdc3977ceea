// From rules to one automaton: each reachable rule becomes a machine, direct left recursion a loop,
// code points bytes; then states from which no rule ends are taken out.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/character_sets.h"
#include "engine/grammar/thompson.h"
#include "engine/grammar/utf8_lowering.h"

namespace heddle::engine::grammar {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

// A = A t | b becomes A = b t*: without the call of itself at the start, and with t after every
// end. Other calls of itself stay.
absl::StatusOr<StateMachine> WithoutSelfCallAtStart(const StateMachine& machine, int32_t rule) {
  const std::vector<CallEdge>& calls = machine.states[0].calls;
  auto self = std::find_if(calls.begin(), calls.end(),
                           [rule](const CallEdge& edge) { return edge.rule == rule; });
  if (self == calls.end()) return machine;
  const int32_t tail = self->target;
  Nfa nfa = ToNfa(machine);
  // The old start may be reached again, where the call is not at the start: it gets a copy.
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
  std::erase_if(nfa.states[0].calls, [rule](const CallEdge& edge) { return edge.rule == rule; });
  for (NfaState& state : nfa.states) {
    if (state.accepting) state.epsilons.push_back(tail == 0 ? old_start : tail);
  }
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine result, Determinize(nfa, kMaxStates));
  return Minimize(result);
}

}  // namespace

class Compiler {
 public:
  explicit Compiler(const Grammar& grammar) : grammar_(grammar) {}

  absl::StatusOr<Automaton> Run() {
    HEDDLE_RETURN_IF_ERROR(BuildMachines());
    FindNullable();
    HEDDLE_RETURN_IF_ERROR(CheckLeftRecursion());
    FindHeights();
    const int32_t root = first_[Index(grammar_.root)];
    if (height_[root] == kNever) {
      return absl::InvalidArgumentError(base::StrCat(
          "the grammar derives no text: rule ", base::Quote(Name(root_rule())),
          " never comes to an end, or only behind more than ", kMaxStackDepth, " nested rules"));
    }
    Emit();
    automaton_.character_sets_ = FindCharacterSets(machines_);
    automaton_.ClassifyBytes();
    automaton_.FindTwins();
    return std::move(automaton_);
  }

 private:
  size_t root_rule() const { return Index(grammar_.root); }
  const std::string& Name(size_t rule) const { return grammar_.rules[rule].name; }

  // Lowered states of the rules that the root reaches, one rule after the other.
  absl::Status BuildMachines() {
    first_.assign(grammar_.rules.size(), -1);
    machines_.resize(grammar_.rules.size());
    std::vector<size_t> work = {root_rule()};
    first_[root_rule()] = 0;
    for (size_t i = 0; i < work.size(); ++i) {
      const size_t rule = work[i];
      absl::StatusOr<StateMachine> machine = MachineOf(grammar_, grammar_.rules[rule].body);
      if (machine.ok()) machine = WithoutSelfCallAtStart(*machine, static_cast<int32_t>(rule));
      if (!machine.ok()) return InRule(rule, machine.status());
      AddStates(rule, LowerToBytes(*machine));
      if (states_.size() > static_cast<size_t>(kMaxStates)) {
        return absl::ResourceExhaustedError(
            base::StrCat("the grammar needs more than ", kMaxStates, " states"));
      }
      for (const MachineState& state : machine->states) {
        for (const CallEdge& call : state.calls) {
          if (first_[call.rule] >= 0) continue;
          first_[call.rule] = 0;  // until it has one
          work.push_back(static_cast<size_t>(call.rule));
        }
      }
      machines_[rule] = *std::move(machine);
    }
    rules_ = std::move(work);
    return absl::OkStatus();
  }

  absl::Status InRule(size_t rule, const absl::Status& status) const {
    return absl::Status(status.code(), base::StrCat("rule ", base::Quote(Name(rule)), ": ",
                                                    std::string_view(status.message().data(),
                                                                     status.message().size())));
  }

  void AddStates(size_t rule, std::vector<ByteState> states) {
    const auto base = static_cast<int32_t>(states_.size());
    first_[rule] = base;
    for (ByteState& state : states) {
      for (ByteEdge& edge : state.bytes) edge.target += base;
      for (CallEdge& edge : state.calls) edge.target += base;
      states_.push_back(std::move(state));
    }
  }

  // A rule that derives the empty text, and what is reached from its start by such rules alone.
  std::vector<int32_t> ReadingNothing(size_t rule) const {
    std::vector<int32_t> reached = {first_[rule]};
    absl::flat_hash_set<int32_t> seen = {first_[rule]};
    for (size_t i = 0; i < reached.size(); ++i) {
      for (const CallEdge& call : states_[reached[i]].calls) {
        if (nullable_[call.rule] && seen.insert(call.target).second) reached.push_back(call.target);
      }
    }
    return reached;
  }

  void FindNullable() {
    nullable_.assign(grammar_.rules.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule : rules_) {
        if (nullable_[rule]) continue;
        const std::vector<int32_t> reached = ReadingNothing(rule);
        nullable_[rule] = std::any_of(reached.begin(), reached.end(),
                                      [this](int32_t s) { return states_[s].accepting; });
        changed |= nullable_[rule];
      }
    }
  }

  absl::Status CheckLeftRecursion() {
    // 0: not seen, 1: on the path, 2: done.
    std::vector<uint8_t> mark(grammar_.rules.size(), 0);
    struct Visit {
      size_t rule;
      std::vector<size_t> callees;
      size_t next = 0;
    };
    for (size_t root : rules_) {
      if (mark[root] != 0) continue;
      std::vector<Visit> path = {{root, LeftCallees(root)}};
      mark[root] = 1;
      while (!path.empty()) {
        Visit& visit = path.back();
        if (visit.next == visit.callees.size()) {
          mark[visit.rule] = 2;
          path.pop_back();
          continue;
        }
        const size_t callee = visit.callees[visit.next++];
        if (mark[callee] == 1) {
          std::string cycle;
          for (const Visit& step : path) cycle += base::StrCat(Name(step.rule), " -> ");
          return absl::InvalidArgumentError(
              base::StrCat("left recursion: ", cycle, Name(callee),
                           "; a rule must read something before it comes back to itself"));
        }
        if (mark[callee] != 0) continue;
        mark[callee] = 1;
        path.push_back({callee, LeftCallees(callee)});
      }
    }
    return absl::OkStatus();
  }

  std::vector<size_t> LeftCallees(size_t rule) const {
    std::vector<size_t> callees;
    for (int32_t state : ReadingNothing(rule)) {
      for (const CallEdge& call : states_[state].calls) {
        callees.push_back(static_cast<size_t>(call.rule));
      }
    }
    return callees;
  }

  // height_[s]: the least, over the ways from s to the end of its rule, of the deepest nesting of
  // calls on the way. Level by level: those of height h follow from those of less.
  void FindHeights() {
    const size_t n = states_.size();
    height_.assign(n, kNever);
    std::vector<std::vector<std::pair<int32_t, int32_t>>> sources(n);  // (state, rule or -1)
    for (size_t s = 0; s < n; ++s) {
      const auto id = static_cast<int32_t>(s);
      for (const ByteEdge& edge : states_[s].bytes) sources[edge.target].emplace_back(id, -1);
      for (const CallEdge& edge : states_[s].calls) {
        sources[edge.target].emplace_back(id, edge.rule);
      }
    }
    std::vector<int32_t> reached;
    for (int32_t level = 0; level < kMaxStackDepth; ++level) {
      std::vector<int32_t> work;
      auto reach = [&](int32_t state) {
        if (height_[state] != kNever) return;
        height_[state] = level;
        work.push_back(state);
      };
      if (level == 0) {
        for (size_t s = 0; s < n; ++s) {
          if (states_[s].accepting) reach(static_cast<int32_t>(s));
        }
      }
      auto callable = [&](int32_t rule) { return height_[first_[rule]] < level; };
      for (int32_t state : reached) {
        for (auto [source, rule] : sources[state]) {
          if (rule < 0 || callable(rule)) reach(source);
        }
      }
      for (size_t i = 0; i < work.size(); ++i) {
        for (auto [source, rule] : sources[work[i]]) {
          if (rule < 0 || callable(rule)) reach(source);
        }
      }
      if (work.empty()) return;
      reached.insert(reached.end(), work.begin(), work.end());
    }
  }

  // Writes the states that can end and their edges to such states.
  void Emit() {
    std::vector<int32_t> id(states_.size(), -1);
    int32_t count = 0;
    for (size_t s = 0; s < states_.size(); ++s) {
      if (height_[s] != kNever) id[s] = count++;
    }
    for (size_t s = 0; s < states_.size(); ++s) {
      if (id[s] < 0) continue;
      for (ByteEdge edge : states_[s].bytes) {
        if (id[edge.target] >= 0)
          automaton_.bytes_.push_back({edge.first, edge.last, id[edge.target]});
      }
      for (const CallEdge& edge : states_[s].calls) {
        const int32_t start = id[first_[edge.rule]];
        if (start >= 0 && id[edge.target] >= 0) {
          automaton_.calls_.push_back({start, id[edge.target], nullable_[edge.rule]});
        }
      }
      automaton_.byte_begin_.push_back(static_cast<int32_t>(automaton_.bytes_.size()));
      automaton_.call_begin_.push_back(static_cast<int32_t>(automaton_.calls_.size()));
      automaton_.accepting_.push_back(states_[s].accepting);
      automaton_.height_.push_back(height_[s]);
      automaton_.max_height_ = std::max(automaton_.max_height_, height_[s]);
    }
    automaton_.start_ = id[first_[root_rule()]];
  }

  const Grammar& grammar_;
  std::vector<size_t> rules_;           // that the root reaches
  std::vector<StateMachine> machines_;  // [rules]; empty of those not reached
  std::vector<int32_t> first_;          // of each rule: its first state, or -1
  std::vector<ByteState> states_;
  std::vector<bool> nullable_;   // [rules]
  std::vector<int32_t> height_;  // [states_]
  Automaton automaton_;
};

absl::StatusOr<Automaton> Compile(const Grammar& grammar) { return Compiler(grammar).Run(); }

}  // namespace heddle::engine::grammar
