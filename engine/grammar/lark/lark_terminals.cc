#include "engine/grammar/lark/lark_terminals.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/thompson.h"

namespace heddle::engine::grammar {
namespace {

bool Has(const std::string& flags, char flag) { return flags.find(flag) != std::string::npos; }

// A terminal's expression, with the meaning that Python's module re gives it.
absl::StatusOr<StateMachine> RegexOf(const LarkNode& node, Budget* budget) {
  std::string pattern;
  for (char32_t c : node.text) base::AppendUtf8(c, &pattern);
  RegexOptions options{.dialect = RegexDialect::kPython, .has_anchors = false};
  options.ignore_case = Has(node.flags, 'i');
  options.dot_all = Has(node.flags, 's');
  options.extended = Has(node.flags, 'x');
  HEDDLE_ASSIGN_OR_RETURN(ParsedRegex parsed, ParseRegex(pattern, options, budget));
  return parsed.is_lazy ? Shortest(std::move(parsed.machine)) : std::move(parsed.machine);
}

ExprId TextOf(const LarkNode& node, Grammar* grammar) {
  if (!Has(node.flags, 'i')) return grammar->Text(node.text);
  std::vector<ExprId> parts;
  for (char32_t c : node.text) {
    parts.push_back(grammar->Chars(CodePointSet::Of(c).WithBothAsciiCases()));
  }
  return grammar->Sequence(std::move(parts));
}

}  // namespace

StateMachine Shortest(StateMachine machine) {
  for (MachineState& state : machine.states) {
    if (state.accepting) state.chars.clear();
  }
  return Trim(machine);
}

absl::StatusOr<StateMachine> LarkTerminals::Named(const std::string& name, int depth) {
  if (const auto known = known_.find(name); known != known_.end()) return known->second;
  const auto defined = document_.definitions.find(name);
  if (defined == document_.definitions.end()) {
    return absl::InvalidArgumentError(base::StrCat("the Lark grammar uses terminal ",
                                                   base::Quote(name), " and does not define it"));
  }
  if (!defined->second.parameters.empty()) {
    return absl::InvalidArgumentError(
        base::StrCat("terminal ", base::Quote(name), " has parameters, which only rules may have"));
  }
  HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, Of(defined->second.body, depth));
  if (defined->second.is_lazy) machine = Shortest(std::move(machine));
  return known_.emplace(name, std::move(machine)).first->second;
}

absl::StatusOr<StateMachine> LarkTerminals::Of(LarkNodeId node, int depth) {
  Grammar scratch;
  HEDDLE_ASSIGN_OR_RETURN(const ExprId expr, Write(node, depth, &scratch));
  return MachineOf(scratch, expr, budget_);
}

absl::StatusOr<ExprId> LarkTerminals::Write(LarkNodeId id, int depth, Grammar* grammar) {
  HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
  if (depth > kMaxNesting) {
    return absl::InvalidArgumentError(base::StrCat(
        "a terminal of the Lark grammar uses itself, or others more than ", kMaxNesting, " deep"));
  }
  const LarkNode& node = document_.nodes[static_cast<size_t>(id)];
  std::vector<ExprId> parts;
  for (LarkNodeId part : node.parts) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId written, Write(part, depth + 1, grammar));
    parts.push_back(written);
  }
  switch (node.kind) {
    case LarkKind::kText:
      return TextOf(node, grammar);
    case LarkKind::kRange:
      return grammar->Chars({{node.text[0], node.text[1]}});
    case LarkKind::kRegex: {
      HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, RegexOf(node, budget_));
      return grammar->Machine(std::move(machine));
    }
    case LarkKind::kName: {
      if (!IsTerminalName(node.name)) {
        return absl::InvalidArgumentError(base::StrCat("a terminal of the Lark grammar uses rule ",
                                                       base::Quote(node.name),
                                                       "; terminals consist of terminals"));
      }
      HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, Named(node.name, depth + 1));
      return grammar->Machine(std::move(machine));
    }
    case LarkKind::kSequence:
      return parts.empty() ? grammar->Text(U"") : grammar->Sequence(std::move(parts));
    case LarkKind::kChoice:
      return grammar->Choice(std::move(parts));
    case LarkKind::kRepeat:
      return grammar->Repeat(parts[0], node.min, node.max);
    case LarkKind::kTemplate:
    case LarkKind::kJson:
      break;
  }
  return absl::InvalidArgumentError(
      "a terminal of the Lark grammar may use neither templates nor schemas");
}

}  // namespace heddle::engine::grammar
