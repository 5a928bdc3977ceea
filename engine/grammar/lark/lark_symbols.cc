#include "engine/grammar/lark/lark_symbols.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/thompson.h"

namespace heddle::engine::grammar {
namespace {

constexpr size_t kMaxLarkRules = 20'000;  // uses of templates with different arguments included

// The characters that JSON values begin with, and those that could make a number longer.
CodePointSet JsonBegins() {
  return {{U'"', U'"'}, {U'-', U'-'}, {U'0', U'9'}, {U'[', U'['},
          {U'f', U'f'}, {U'n', U'n'}, {U't', U't'}, {U'{', U'{'}};
}
CodePointSet JsonGoesOn() {
  return {{U'+', U'+'}, {U'-', U'.'}, {U'0', U'9'}, {U'E', U'E'}, {U'e', U'e'}};
}

CodePointSet CharactersFrom(const MachineState& state) {
  std::vector<CodePointRange> ranges;
  ranges.reserve(state.chars.size());
  for (const CharEdge& edge : state.chars) ranges.push_back({edge.first, edge.last});
  return CodePointSet::OfRanges(std::move(ranges));
}

}  // namespace

absl::Status LarkSymbols::Resolve() {
  HEDDLE_RETURN_IF_ERROR(FindIgnored());
  if (!document_.definitions.contains("start")) {
    return absl::InvalidArgumentError("the Lark grammar has no rule \"start\", where texts begin");
  }
  HEDDLE_RETURN_IF_ERROR(RuleNamed("start", {}).status());
  while (!unresolved_.empty()) {
    const Unresolved next = std::move(unresolved_.back());
    unresolved_.pop_back();
    HEDDLE_ASSIGN_OR_RETURN(const LarkPartId body, PartOf(next.body, next.bindings, 0));
    rules_[static_cast<size_t>(next.rule)].body = body;
  }
  return FindFacts();
}

absl::Status LarkSymbols::FindIgnored() {
  if (document_.ignored.empty()) return absl::OkStatus();
  Grammar scratch;
  std::vector<ExprId> choices;
  for (LarkNodeId node : document_.ignored) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, machines_.Of(node));
    choices.push_back(scratch.Machine(std::move(machine)));
  }
  const ExprId pieces = scratch.Repeat(scratch.Choice(std::move(choices)), 1, kUnbounded);
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine all, MachineOf(scratch, pieces, budget_));
  HEDDLE_ASSIGN_OR_RETURN(ignored_, Intersect(all, AnyTextOfLength(1, -1), kMaxStates, budget_));
  return absl::OkStatus();
}

LarkPartId LarkSymbols::Add(LarkPart part) {
  parts_.push_back(std::move(part));
  return static_cast<LarkPartId>(parts_.size()) - 1;
}

absl::StatusOr<LarkSymbols::Symbol> LarkSymbols::RuleNamed(const std::string& name,
                                                           std::vector<Symbol> arguments) {
  auto [known, is_new] = rule_of_.try_emplace({name, std::move(arguments)});
  if (!is_new) return known->second;
  const auto defined = document_.definitions.find(name);
  if (defined == document_.definitions.end()) {
    return absl::InvalidArgumentError(
        base::StrCat("the Lark grammar uses rule ", base::Quote(name), " and does not define it"));
  }
  const LarkDefinition& definition = defined->second;
  const std::vector<Symbol>& given = known->first.second;
  if (definition.parameters.size() != given.size()) {
    return absl::InvalidArgumentError(
        base::StrCat("rule ", base::Quote(name), " of the Lark grammar has ",
                     definition.parameters.size(), " parameters, and is used with ", given.size()));
  }
  if (rules_.size() >= kMaxLarkRules) {
    return absl::ResourceExhaustedError(base::StrCat(
        "the Lark grammar has more than ", kMaxLarkRules, " rules when its templates are used"));
  }
  known->second = {true, static_cast<int32_t>(rules_.size())};
  rules_.push_back({name});
  Unresolved next{known->second.index, definition.body, {}};
  for (size_t i = 0; i < given.size(); ++i) next.bindings[definition.parameters[i]] = given[i];
  unresolved_.push_back(std::move(next));
  return known->second;
}

absl::StatusOr<LarkSymbols::Symbol> LarkSymbols::TerminalOf(LarkNodeId id) {
  const LarkNode& node = document_.nodes[static_cast<size_t>(id)];
  auto [known, is_new] = terminal_of_.try_emplace(
      {node.kind, node.text, node.kind == LarkKind::kName ? node.name : node.flags});
  if (!is_new) return known->second;
  LarkTerminal terminal;
  terminal.name = node.kind == LarkKind::kName ? node.name : "terminal";
  if (node.kind == LarkKind::kText && node.flags.empty() && !node.text.empty()) {
    terminal.text = node.text;
    terminal.first = CodePointSet::Of(node.text[0]);
  } else {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, node.kind == LarkKind::kName
                                                      ? machines_.Named(node.name)
                                                      : machines_.Of(id));
    terminal.is_nullable = machine.states[0].accepting;
    if (terminal.is_nullable) {
      HEDDLE_ASSIGN_OR_RETURN(machine,
                              Intersect(machine, AnyTextOfLength(1, -1), kMaxStates, budget_));
    }
    terminal.machine = Trim(machine);
    terminal.first = CharactersFrom(terminal.machine.states[0]);
    for (const MachineState& state : terminal.machine.states) {
      HEDDLE_RETURN_IF_ERROR(Spend(
          budget_, static_cast<int64_t>(state.chars.size() + terminal.goes_on.ranges().size())));
      if (state.accepting) terminal.goes_on.Add(CharactersFrom(state));
    }
  }
  known->second = {false, static_cast<int32_t>(terminals_.size())};
  terminals_.push_back(std::move(terminal));
  return known->second;
}

absl::StatusOr<LarkSymbols::Symbol> LarkSymbols::SymbolOf(LarkNodeId id, const Bindings& bindings,
                                                          int depth) {
  const LarkNode& node = document_.nodes[static_cast<size_t>(id)];
  HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
  if (node.kind == LarkKind::kName) {
    if (const auto bound = bindings.find(node.name); bound != bindings.end()) return bound->second;
    return IsTerminalName(node.name) ? TerminalOf(id) : RuleNamed(node.name, {});
  }
  if (node.kind == LarkKind::kTemplate) {
    if (depth > kMaxNesting) {
      return absl::InvalidArgumentError("templates of the Lark grammar are nested too deeply");
    }
    std::vector<Symbol> arguments;
    for (LarkNodeId part : node.parts) {
      HEDDLE_ASSIGN_OR_RETURN(const Symbol argument, SymbolOf(part, bindings, depth + 1));
      arguments.push_back(argument);
    }
    return RuleNamed(node.name, std::move(arguments));
  }
  if (node.kind == LarkKind::kJson) {
    return absl::InvalidArgumentError(
        "the argument of a template may not be a schema; name a rule");
  }
  return TerminalOf(id);
}

absl::StatusOr<LarkPartId> LarkSymbols::PartOf(LarkNodeId id, const Bindings& bindings, int depth) {
  const LarkNode& node = document_.nodes[static_cast<size_t>(id)];
  HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
  if (depth > 4 * kMaxNesting) {
    return absl::InvalidArgumentError("the Lark grammar is nested too deeply");
  }
  LarkPart part{.min = node.min, .max = node.max};
  switch (node.kind) {
    case LarkKind::kSequence:
    case LarkKind::kChoice:
    case LarkKind::kRepeat:
      part.kind = node.kind == LarkKind::kSequence ? LarkPartKind::kSequence
                  : node.kind == LarkKind::kChoice ? LarkPartKind::kChoice
                                                   : LarkPartKind::kRepeat;
      for (LarkNodeId child : node.parts) {
        HEDDLE_ASSIGN_OR_RETURN(const LarkPartId resolved, PartOf(child, bindings, depth + 1));
        part.parts.push_back(resolved);
      }
      return Add(std::move(part));
    case LarkKind::kJson:
      part.kind = LarkPartKind::kJson;
      part.index = static_cast<int32_t>(schemas_.size());
      part.first = JsonBegins();
      part.goes_on = JsonGoesOn();
      schemas_.push_back(node.name);
      return Add(std::move(part));
    default:
      break;
  }
  HEDDLE_ASSIGN_OR_RETURN(const Symbol symbol, SymbolOf(id, bindings, depth));
  part.kind = symbol.is_rule ? LarkPartKind::kRule : LarkPartKind::kTerminal;
  part.index = symbol.index;
  if (!symbol.is_rule) {
    const LarkTerminal& terminal = terminals_[static_cast<size_t>(symbol.index)];
    part.is_nullable = terminal.is_nullable;
    part.first = terminal.first;
    part.goes_on = terminal.goes_on;
  }
  return Add(std::move(part));
}

// Facts of a rule depend on those of others: they are found in rounds, until nothing changes. What
// a rule uses was mostly met after it, so that few rounds from the last part to the first do.
absl::Status LarkSymbols::FindFacts() {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = parts_.size(); i-- > 0;) {
      HEDDLE_ASSIGN_OR_RETURN(const bool more, UpdateFacts(static_cast<LarkPartId>(i)));
      changed |= more;
    }
  }
  return absl::OkStatus();
}

// Returns whether anything became known. Facts only grow.
absl::StatusOr<bool> LarkSymbols::UpdateFacts(LarkPartId id) {
  LarkPart& part = parts_[static_cast<size_t>(id)];
  HEDDLE_RETURN_IF_ERROR(Spend(budget_, 4));
  if (part.kind == LarkPartKind::kTerminal || part.kind == LarkPartKind::kJson) return false;
  bool is_nullable = part.kind == LarkPartKind::kSequence;
  CodePointSet first;
  CodePointSet goes_on;
  const auto add = [&](const CodePointSet& more, CodePointSet* set) {
    if (ignored_.states.empty()) return absl::OkStatus();  // nobody asks
    set->Add(more);
    // Sets are small and each is a piece of memory: ten units cover that.
    return Spend(budget_, static_cast<int64_t>(10 + more.ranges().size() + set->ranges().size()));
  };
  if (part.kind == LarkPartKind::kRule) {
    const LarkPart& body = this->part(rules_[static_cast<size_t>(part.index)].body);
    is_nullable = body.is_nullable;
    HEDDLE_RETURN_IF_ERROR(add(body.first, &first));
    HEDDLE_RETURN_IF_ERROR(add(body.goes_on, &goes_on));
  }
  bool at_begin = true;
  for (LarkPartId child_id : part.parts) {
    const LarkPart& child = this->part(child_id);
    if (part.kind == LarkPartKind::kSequence) {
      if (!child.is_nullable) goes_on = {};
      if (at_begin) HEDDLE_RETURN_IF_ERROR(add(child.first, &first));
      at_begin &= child.is_nullable;
      is_nullable &= child.is_nullable;
    } else {
      HEDDLE_RETURN_IF_ERROR(add(child.first, &first));
      is_nullable |= child.is_nullable || (part.kind == LarkPartKind::kRepeat && part.min == 0);
    }
    HEDDLE_RETURN_IF_ERROR(add(child.goes_on, &goes_on));
  }
  const bool changed =
      is_nullable != part.is_nullable || first != part.first || goes_on != part.goes_on;
  part.is_nullable = is_nullable;
  part.first = std::move(first);
  part.goes_on = std::move(goes_on);
  return changed;
}

}  // namespace heddle::engine::grammar
