// Writes finite automata edge by edge: the shapes of JSON's objects and arrays. Internal.
#pragma once

#include <string_view>

#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

class MachineBuilder {
 public:
  MachineBuilder() { NewState(); }

  int32_t start() const { return 0; }
  int32_t NewState() {
    nfa_.states.emplace_back();
    return static_cast<int32_t>(nfa_.states.size()) - 1;
  }
  size_t size() const { return nfa_.states.size(); }

  void Epsilon(int32_t from, int32_t to) { At(from).epsilons.push_back(to); }
  void Accept(int32_t state) { At(state).accepting = true; }
  void Call(int32_t from, RuleId rule, int32_t to) {
    At(from).calls.push_back({static_cast<int32_t>(rule), to});
  }
  // Plain ASCII and other UTF-8 alike. `text` is not empty.
  void Text(int32_t from, std::string_view utf8, int32_t to) {
    Grammar scratch;
    const ExprId id = scratch.Text(utf8);
    const std::u32string& text = scratch.exprs[Index(id)].text;
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t next = i + 1 == text.size() ? to : NewState();
      At(from).chars.push_back({text[i], text[i], next});
      from = next;
    }
  }

  absl::StatusOr<StateMachine> Build() const {
    absl::StatusOr<StateMachine> machine = Determinize(nfa_, kMaxStates);
    if (!machine.ok()) return machine;
    return Minimize(*machine);
  }

 private:
  NfaState& At(int32_t state) { return nfa_.states[static_cast<size_t>(state)]; }

  Nfa nfa_;
};

}  // namespace heddle::engine::grammar
