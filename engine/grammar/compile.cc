// Compiles rules to one automaton: each reachable rule becomes a machine, left recursion becomes
// loops, code points become bytes; then states that cannot reach the end of their rule are
// removed.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/character_sets.h"
#include "engine/grammar/left_recursion.h"
#include "engine/grammar/thompson.h"
#include "engine/grammar/utf8_lowering.h"

namespace heddle::engine::grammar {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

}  // namespace

class Compiler {
 public:
  Compiler(const Grammar& grammar, Budget* budget) : grammar_(grammar), budget_(budget) {}

  absl::StatusOr<Automaton> Run() {
    HEDDLE_RETURN_IF_ERROR(BuildMachines());
    HEDDLE_RETURN_IF_ERROR(FindNullable());
    HEDDLE_RETURN_IF_ERROR(RankRules());
    HEDDLE_RETURN_IF_ERROR(FindHeights());
    const int32_t root = first_[Index(grammar_.root)];
    if (height_[root] == kNever) {
      if (const std::string* note = WhyEmpty()) {
        return absl::InvalidArgumentError(base::StrCat("no value is valid: ", *note));
      }
      return absl::InvalidArgumentError(base::StrCat(
          "the grammar derives no text: rule ", base::Quote(Name(root_rule())),
          " never comes to an end, or only behind more than ", kMaxStackDepth, " nested rules"));
    }
    Emit();
    automaton_.character_sets_ = FindCharacterSets(machines_, budget_);
    automaton_.ClassifyBytes();
    HEDDLE_RETURN_IF_ERROR(automaton_.FindTwins(budget_));
    return std::move(automaton_);
  }

 private:
  size_t root_rule() const { return Index(grammar_.root); }
  const std::string& Name(size_t rule) const { return grammar_.rules[rule].name; }

  // Builds the byte machines of the rules that the root reaches, one rule after the other.
  absl::Status BuildMachines() {
    const size_t max_states =
        static_cast<size_t>(kMaxStates) + (budget_ == nullptr ? 0 : budget_->more_states());
    first_.assign(grammar_.rules.size(), -1);
    machines_.resize(grammar_.rules.size());
    std::vector<size_t> work = {root_rule()};
    first_[root_rule()] = 0;
    size_t num_states = 0;
    for (size_t i = 0; i < work.size(); ++i) {
      const size_t rule = work[i];
      absl::StatusOr<StateMachine> machine =
          MachineOf(grammar_, grammar_.rules[rule].body, budget_);
      if (!machine.ok()) return InRule(rule, machine.status());
      num_states += machine->states.size();
      if (num_states > max_states) return TooLarge(max_states);
      for (const MachineState& state : machine->states) {
        for (const CallEdge& call : state.calls) {
          if (first_[call.rule] >= 0) continue;
          first_[call.rule] = 0;  // until it has one
          work.push_back(static_cast<size_t>(call.rule));
        }
      }
      machines_[rule] = *std::move(machine);
    }
    HEDDLE_RETURN_IF_ERROR(RemoveLeftRecursion(work, max_states, &machines_, budget_));
    for (size_t rule : work) {
      AddStates(rule, LowerToBytes(machines_[rule], budget_));
      HEDDLE_RETURN_IF_ERROR(StatusOf(budget_));
      if (states_.size() > max_states || num_edges_ > kMaxEdges) return TooLarge(max_states);
    }
    rules_ = std::move(work);
    return absl::OkStatus();
  }

  static absl::Status TooLarge(size_t max_states) {
    return absl::ResourceExhaustedError(base::StrCat("the grammar needs more than ", max_states,
                                                     " states or ", kMaxEdges, " edges"));
  }

  // The note of the first rule that derives nothing and of which that is known why; null if there
  // is none.
  const std::string* WhyEmpty() const {
    std::vector<size_t> work = {root_rule()};
    std::vector<bool> seen(grammar_.rules.size(), false);
    seen[root_rule()] = true;
    for (size_t i = 0; i < work.size(); ++i) {
      const Rule& rule = grammar_.rules[work[i]];
      if (!rule.note.empty()) return &rule.note;
      for (const MachineState& state : machines_[work[i]].states) {
        for (const CallEdge& call : state.calls) {
          const auto callee = static_cast<size_t>(call.rule);
          if (seen[callee] || height_[first_[callee]] != kNever) continue;
          seen[callee] = true;
          work.push_back(callee);
        }
      }
    }
    return nullptr;
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
      num_edges_ += state.bytes.size() + state.calls.size();
      states_.push_back(std::move(state));
      rule_of_.push_back(static_cast<int32_t>(rule));
    }
  }

  // Fills nullable_ (rules that derive the empty text) and unread_ (states that are reached from
  // the start of their rule through such rules alone). Each state and each call is looked at once:
  // a call of a rule that is not yet known to be nullable waits with that rule.
  absl::Status FindNullable() {
    nullable_.assign(grammar_.rules.size(), false);
    unread_.assign(states_.size(), false);
    std::vector<std::vector<int32_t>> waiting(grammar_.rules.size());  // targets, by rule called
    std::vector<int32_t> work;
    const auto reach = [&](int32_t state) {
      if (unread_[state]) return;
      unread_[state] = true;
      work.push_back(state);
    };
    for (size_t rule : rules_) reach(first_[rule]);
    for (size_t i = 0; i < work.size(); ++i) {
      const ByteState& state = states_[work[i]];
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1 + static_cast<int64_t>(state.calls.size())));
      for (const CallEdge& call : state.calls) {
        if (nullable_[call.rule]) {
          reach(call.target);
        } else {
          waiting[call.rule].push_back(call.target);
        }
      }
      const auto rule = static_cast<size_t>(rule_of_[work[i]]);
      if (!state.accepting || nullable_[rule]) continue;
      nullable_[rule] = true;
      for (int32_t target : waiting[rule]) reach(target);
    }
    return absl::OkStatus();
  }

  // Ranks rules in reverse postorder of a depth-first search over calls before the first byte:
  // ranks grow along such calls.
  absl::Status RankRules() {
    enum : uint8_t { kUnseen, kOnPath, kDone };
    struct Visit {
      size_t rule;
      std::vector<size_t> callees;
      size_t next = 0;
    };
    std::vector<uint8_t> mark(grammar_.rules.size(), kUnseen);
    rank_.assign(grammar_.rules.size(), 0);
    auto rank = static_cast<int32_t>(rules_.size());
    std::vector<std::vector<size_t>> callees = LeftCallees();
    for (size_t root : rules_) {
      if (mark[root] != kUnseen) continue;
      std::vector<Visit> path;
      const auto enter = [&](size_t rule) {
        mark[rule] = kOnPath;
        path.push_back({rule, std::move(callees[rule])});
      };
      for (enter(root); !path.empty();) {
        Visit& visit = path.back();
        if (visit.next == visit.callees.size()) {
          mark[visit.rule] = kDone;
          rank_[visit.rule] = rank--;
          path.pop_back();
          continue;
        }
        HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
        const size_t callee = visit.callees[visit.next++];
        if (mark[callee] == kUnseen) {
          enter(callee);
        } else if (mark[callee] == kOnPath) {
          std::vector<size_t> cycle;
          for (const Visit& step : path) {
            if (step.rule == callee || !cycle.empty()) cycle.push_back(step.rule);
          }
          return LeftRecursion(cycle);
        }
      }
    }
    return absl::OkStatus();
  }

  // By rule: the rules that it may call before it has read anything.
  std::vector<std::vector<size_t>> LeftCallees() const {
    std::vector<std::vector<size_t>> callees(grammar_.rules.size());
    for (size_t s = 0; s < states_.size(); ++s) {
      if (!unread_[s]) continue;
      for (const CallEdge& call : states_[s].calls) {
        callees[rule_of_[s]].push_back(static_cast<size_t>(call.rule));
      }
    }
    return callees;
  }

  absl::Status LeftRecursion(const std::vector<size_t>& cycle) const {
    constexpr size_t kMaxNamed = 8;
    std::string names;
    for (size_t i = 0; i < std::min(cycle.size(), kMaxNamed); ++i) {
      names += base::StrCat(Name(cycle[i]), " -> ");
    }
    if (cycle.size() > kMaxNamed) {
      names += base::StrCat("(", cycle.size() - kMaxNamed, " more) -> ");
    }
    return absl::InvalidArgumentError(
        base::StrCat("left recursion: ", names, Name(cycle.front()),
                     "; a rule must read something before it comes back to itself"));
  }

  // Computes height_[s]: the least, over the ways from s to the end of its rule, of the deepest
  // nesting of calls on the way. It works level by level, as in Knuth's generalisation of
  // Dijkstra's algorithm: an edge's value is known when all that it leads to is known.
  absl::Status FindHeights() {
    struct Source {
      int32_t state;
      int32_t other;   // must be known as well: the target, or the start of the called rule; -1:
                       // none
      bool is_callee;  // listed at the called rule's start; `other` is then the call's target
    };
    const size_t n = states_.size();
    height_.assign(n, kNever);
    std::vector<std::vector<Source>> sources(n);
    for (size_t s = 0; s < n; ++s) {
      const auto id = static_cast<int32_t>(s);
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1 + static_cast<int64_t>(states_[s].bytes.size())));
      for (const ByteEdge& edge : states_[s].bytes) sources[edge.target].push_back({id, -1, false});
      for (const CallEdge& edge : states_[s].calls) {
        sources[edge.target].push_back({id, first_[edge.rule], false});
        sources[first_[edge.rule]].push_back({id, edge.target, true});
      }
    }
    std::vector<std::vector<int32_t>> levels(static_cast<size_t>(kMaxStackDepth) + 1);
    for (size_t s = 0; s < n; ++s) {
      if (states_[s].accepting) levels[0].push_back(static_cast<int32_t>(s));
    }
    for (int32_t level = 0; level < kMaxStackDepth; ++level) {
      std::vector<int32_t>& found = levels[level];
      for (size_t i = 0; i < found.size(); ++i) {
        const int32_t state = found[i];
        if (height_[state] != kNever) continue;
        height_[state] = level;
        for (const Source& source : sources[state]) {
          int32_t height = level + (source.is_callee ? 1 : 0);
          if (source.other >= 0) {
            const int32_t other = height_[source.other];
            if (other == kNever) continue;  // it is handled when `other` is known
            height = std::max(height, other + (source.is_callee ? 0 : 1));
          }
          if (height < kMaxStackDepth) levels[height].push_back(source.state);
        }
      }
      levels[level] = {};
    }
    return absl::OkStatus();
  }

  // Writes the states that can reach an end, and their edges to such states.
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
          automaton_.calls_.push_back(
              {start, id[edge.target], nullable_[edge.rule], rank_[edge.rule]});
        }
      }
      automaton_.byte_begin_.push_back(static_cast<int32_t>(automaton_.bytes_.size()));
      automaton_.call_begin_.push_back(static_cast<int32_t>(automaton_.calls_.size()));
      automaton_.accepting_.push_back(states_[s].accepting);
      automaton_.height_.push_back(height_[s]);
      automaton_.max_height_ = std::max(automaton_.max_height_, height_[s]);
    }
    automaton_.start_ = id[first_[root_rule()]];
    for (size_t rule : rules_) {
      const int32_t start = id[first_[rule]];
      if (!grammar_.rules[rule].is_distinct || start < 0) continue;
      automaton_.begins_distinct_.resize(automaton_.accepting_.size(), false);
      automaton_.begins_distinct_[start] = true;
    }
  }

  const Grammar& grammar_;
  Budget* const budget_;
  std::vector<size_t> rules_;           // rules that the root reaches
  std::vector<StateMachine> machines_;  // [rules]; empty if unreachable
  std::vector<int32_t> first_;          // first state of each rule, or -1
  std::vector<ByteState> states_;
  std::vector<int32_t> rule_of_;  // [states_]
  size_t num_edges_ = 0;          // edges of states_
  std::vector<bool> nullable_;    // [rules]
  std::vector<bool> unread_;      // [states_]
  std::vector<int32_t> rank_;     // [rules]
  std::vector<int32_t> height_;   // [states_]
  Automaton automaton_;
};

absl::StatusOr<Automaton> Compile(const Grammar& grammar, Budget* budget) {
  return Compiler(grammar, budget).Run();
}

}  // namespace heddle::engine::grammar
