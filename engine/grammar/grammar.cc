#include "engine/grammar/grammar.h"

#include <utility>

#include "base/utf8.h"

namespace heddle::engine::grammar {

ExprId Grammar::Add(Expr expr) {
  exprs.push_back(std::move(expr));
  return ExprId{static_cast<int32_t>(exprs.size()) - 1};
}

ExprId Grammar::Text(std::u32string_view text) {
  return Add({.kind = ExprKind::kText, .text = std::u32string(text)});
}

ExprId Grammar::Text(std::string_view utf8) {
  std::u32string text;
  for (size_t i = 0; i < utf8.size(); i += base::Utf8Size(utf8[i])) {
    text.push_back(base::DecodeUtf8(utf8.data() + i));
  }
  return Text(text);
}

ExprId Grammar::Chars(CodePointSet chars) {
  return Add({.kind = ExprKind::kChars, .chars = std::move(chars)});
}

ExprId Grammar::Sequence(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return Add({.kind = ExprKind::kSequence, .parts = std::move(parts)});
}

ExprId Grammar::Choice(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return Add({.kind = ExprKind::kChoice, .parts = std::move(parts)});
}

ExprId Grammar::Repeat(ExprId part, int32_t min, int32_t max) {
  return Add({.kind = ExprKind::kRepeat, .parts = {part}, .min = min, .max = max});
}

ExprId Grammar::Call(RuleId rule) { return Add({.kind = ExprKind::kRule, .rule = rule}); }

ExprId Grammar::Machine(StateMachine machine) {
  machines.push_back(std::move(machine));
  return Add({.kind = ExprKind::kMachine, .machine = static_cast<int32_t>(machines.size()) - 1});
}

ExprId Grammar::Anchor(ExprKind kind) { return Add({.kind = kind}); }

RuleId Grammar::DeclareRule(std::string name) {
  rules.push_back({std::move(name), ExprId{-1}});
  return RuleId{static_cast<int32_t>(rules.size()) - 1};
}

RuleId Grammar::AddRule(std::string name, ExprId body) {
  rules.push_back({std::move(name), body});
  return RuleId{static_cast<int32_t>(rules.size()) - 1};
}

RuleId Grammar::Append(Grammar other) {
  const auto first_expr = static_cast<int32_t>(exprs.size());
  const auto first_rule = static_cast<int32_t>(rules.size());
  const auto first_machine = static_cast<int32_t>(machines.size());
  auto moved = [first_rule](RuleId id) { return RuleId{static_cast<int32_t>(id) + first_rule}; };
  auto moved_expr = [first_expr](ExprId id) {
    return ExprId{static_cast<int32_t>(id) + first_expr};
  };
  for (Expr& expr : other.exprs) {
    for (ExprId& part : expr.parts) part = moved_expr(part);
    expr.rule = moved(expr.rule);
    expr.machine += first_machine;
    exprs.push_back(std::move(expr));
  }
  for (Rule& rule : other.rules) {
    rule.body = moved_expr(rule.body);
    rules.push_back(std::move(rule));
  }
  for (StateMachine& machine : other.machines) {
    for (MachineState& state : machine.states) {
      for (CallEdge& call : state.calls) call.rule += first_rule;
    }
    machines.push_back(std::move(machine));
  }
  return moved(other.root);
}

}  // namespace heddle::engine::grammar
