#include "engine/grammar/thompson.h"

#include <algorithm>

#include "base/message.h"
#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// Thompson's construction. Every part leads from one state to another; its states are made when it
// is written, so a repeated part is written once per repeat.
class Thompson {
 public:
  Thompson(const Grammar& grammar, Budget* budget) : grammar_(grammar), budget_(budget) {}

  absl::StatusOr<Nfa> Run(ExprId expr) {
    const int32_t start = NewState();
    const int32_t end = NewState();
    HEDDLE_RETURN_IF_ERROR(Write(expr, start, end, 0));
    nfa_.states[end].accepting = true;
    return std::move(nfa_);
  }

 private:
  int32_t NewState() {
    nfa_.states.emplace_back();
    return static_cast<int32_t>(nfa_.states.size()) - 1;
  }

  void Epsilon(int32_t from, int32_t to) { nfa_.states[from].epsilons.push_back(to); }

  absl::Status Write(ExprId id, int32_t from, int32_t to, int depth) {
    // Counts twice the states of the machine: a part may add a state before and one behind it.
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
    if (nfa_.states.size() > 2 * static_cast<size_t>(kMaxStates) || num_edges_ > kMaxEdges ||
        depth > 4 * kMaxNesting) {
      return absl::ResourceExhaustedError(base::StrCat(
          "the expression needs more than ", kMaxStates,
          " states or is nested too deeply; counted repeats multiply what they repeat"));
    }
    const Expr& expr = grammar_.exprs[Index(id)];
    switch (expr.kind) {
      case ExprKind::kText:
        return WriteText(expr.text, from, to);
      case ExprKind::kChars:
        for (const CodePointRange& range : expr.chars.ranges()) {
          nfa_.states[from].chars.push_back({range.first, range.last, to});
        }
        return CountEdges(expr.chars.ranges().size());
      case ExprKind::kSequence:
        return WriteSequence(expr, from, to, depth);
      case ExprKind::kChoice:
        for (ExprId part : expr.parts) HEDDLE_RETURN_IF_ERROR(WriteApart(part, from, to, depth));
        return absl::OkStatus();
      case ExprKind::kRepeat:
        return WriteRepeat(expr, from, to, depth);
      case ExprKind::kRule:
        nfa_.states[from].calls.push_back({static_cast<int32_t>(expr.rule), to});
        return absl::OkStatus();
      case ExprKind::kMachine:
        return WriteMachine(grammar_.machines[expr.machine], from, to);
      case ExprKind::kBegin:
        nfa_.states[from].at_begin.push_back(to);
        return absl::OkStatus();
      case ExprKind::kEnd:
        nfa_.states[from].at_end.push_back(to);
        return absl::OkStatus();
      case ExprKind::kAhead:
        break;  // look_ahead.h has resolved it
    }
    return absl::InternalError("an expression of no kind");
  }

  absl::Status WriteText(std::u32string_view text, int32_t from, int32_t to) {
    if (text.empty()) Epsilon(from, to);
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t next = i + 1 == text.size() ? to : NewState();
      nfa_.states[from].chars.push_back({text[i], text[i], next});
      from = next;
    }
    return CountEdges(text.size());
  }

  // Classes that name characters one by one give a state many edges.
  absl::Status CountEdges(size_t count) {
    num_edges_ += count;
    return Spend(budget_, static_cast<int64_t>(count));
  }

  absl::Status WriteSequence(const Expr& expr, int32_t from, int32_t to, int depth) {
    for (ExprId part : expr.parts) {
      const int32_t next = NewState();
      HEDDLE_RETURN_IF_ERROR(Write(part, from, next, depth + 1));
      from = next;
    }
    Epsilon(from, to);
    return absl::OkStatus();
  }

  // Writes a part between its own states: edges back to `from` would join the alternatives.
  absl::Status WriteApart(ExprId part, int32_t from, int32_t to, int depth) {
    const int32_t begin = NewState();
    Epsilon(from, begin);
    return Write(part, begin, to, depth + 1);
  }

  absl::Status WriteRepeat(const Expr& expr, int32_t from, int32_t to, int depth) {
    const ExprId part = expr.parts[0];
    for (int32_t i = 0; i < expr.min; ++i) {
      const int32_t next = NewState();
      HEDDLE_RETURN_IF_ERROR(Write(part, from, next, depth + 1));
      from = next;
    }
    if (expr.max == kUnbounded) {
      const int32_t loop = NewState();
      const int32_t end = NewState();
      Epsilon(from, loop);
      HEDDLE_RETURN_IF_ERROR(Write(part, loop, end, depth + 1));
      Epsilon(end, loop);
      Epsilon(loop, to);
      return absl::OkStatus();
    }
    // Each optional copy may be left out, together with all that follow it.
    for (int32_t i = expr.min; i < expr.max; ++i) {
      const int32_t begin = NewState();
      const int32_t next = NewState();
      Epsilon(from, begin);
      Epsilon(from, to);
      HEDDLE_RETURN_IF_ERROR(Write(part, begin, next, depth + 1));
      from = next;
    }
    Epsilon(from, to);
    return absl::OkStatus();
  }

  absl::Status WriteMachine(const StateMachine& machine, int32_t from, int32_t to) {
    const auto base = static_cast<int32_t>(nfa_.states.size());
    for (size_t i = 0; i < machine.states.size(); ++i) NewState();
    Epsilon(from, base);
    for (size_t i = 0; i < machine.states.size(); ++i) {
      NfaState& state = nfa_.states[base + i];
      for (CharEdge edge : machine.states[i].chars) {
        state.chars.push_back({edge.first, edge.last, base + edge.target});
      }
      HEDDLE_RETURN_IF_ERROR(CountEdges(machine.states[i].chars.size() + 1));
      for (CallEdge edge : machine.states[i].calls) {
        state.calls.push_back({edge.rule, base + edge.target});
      }
      if (machine.states[i].accepting) state.epsilons.push_back(to);
    }
    return absl::OkStatus();
  }

  const Grammar& grammar_;
  Budget* const budget_;
  Nfa nfa_;
  size_t num_edges_ = 0;
};

}  // namespace

absl::StatusOr<StateMachine> MachineOf(const Grammar& grammar, ExprId expr, Budget* budget) {
  // A machine by itself is deterministic already, and those who make them make them small.
  if (const Expr& only = grammar.exprs[Index(expr)]; only.kind == ExprKind::kMachine) {
    const StateMachine& machine = grammar.machines[static_cast<size_t>(only.machine)];
    HEDDLE_RETURN_IF_ERROR(Spend(budget, static_cast<int64_t>(machine.states.size())));
    return machine;
  }
  HEDDLE_ASSIGN_OR_RETURN(const Nfa nfa, Thompson(grammar, budget).Run(expr));
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, Determinize(nfa, kMaxStates, budget));
  StateMachine least = Minimize(machine, budget);
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
  return least;
}

}  // namespace heddle::engine::grammar
