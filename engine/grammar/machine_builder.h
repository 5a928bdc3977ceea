// Writes finite automata edge by edge, for JSON's objects and arrays. Internal to engine/grammar.
#pragma once

#include <string_view>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/budget.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

class MachineBuilder {
 public:
  explicit MachineBuilder(Budget* budget) : budget_(budget) { NewState(); }

  int32_t start() const { return 0; }
  // Adds a state. Beyond the limit, which Build reports, it returns the last state again, so that
  // nothing grows any more.
  int32_t NewState() {
    is_full_ |= nfa_.states.size() > 2 * size_t{kMaxStates} || !Spend(budget_, 1).ok();
    if (!is_full_) nfa_.states.emplace_back();
    return static_cast<int32_t>(nfa_.states.size()) - 1;
  }
  size_t size() const { return nfa_.states.size(); }

  void Epsilon(int32_t from, int32_t to) { At(from).epsilons.push_back(to); }
  void Accept(int32_t state) { At(state).accepting = true; }
  void Call(int32_t from, RuleId rule, int32_t to) {
    At(from).calls.push_back({static_cast<int32_t>(rule), to});
  }
  // Adds a path for `utf8`, which is not empty.
  void Text(int32_t from, std::string_view utf8, int32_t to) {
    Grammar scratch;
    const ExprId id = scratch.Text(utf8);
    const std::u32string& text = scratch.exprs[Index(id)].text;
    for (size_t i = 0; i < text.size() && !is_full_; ++i) {
      const int32_t next = i + 1 == text.size() ? to : NewState();
      At(from).chars.push_back({text[i], text[i], next});
      from = next;
    }
  }

  absl::StatusOr<StateMachine> Build() const {
    HEDDLE_RETURN_IF_ERROR(StatusOf(budget_));
    if (is_full_) {
      return absl::ResourceExhaustedError(base::StrCat(
          "what the schema says of one value needs more than ", kMaxStates, " states"));
    }
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, Determinize(nfa_, kMaxStates, budget_));
    StateMachine least = Minimize(machine, budget_);
    HEDDLE_RETURN_IF_ERROR(StatusOf(budget_));
    return least;
  }

 private:
  NfaState& At(int32_t state) { return nfa_.states[static_cast<size_t>(state)]; }

  Budget* const budget_;
  Nfa nfa_;
  bool is_full_ = false;
};

}  // namespace heddle::engine::grammar
