// A Lark grammar with its names resolved and its templates written out: rules over terminals, and
// what is known of the texts of each part. Internal to lark.
// Thread-safety: none while it is made; then immutable.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/lark/lark_document.h"
#include "engine/grammar/lark/lark_terminals.h"

namespace heddle::engine::grammar {

enum class LarkPartKind : uint8_t { kTerminal, kRule, kSequence, kChoice, kRepeat, kJson };

using LarkPartId = int32_t;

struct LarkPart {
  LarkPartKind kind = LarkPartKind::kSequence;
  int32_t index = 0;  // of a terminal, a rule or a schema
  std::vector<LarkPartId> parts = {};
  int32_t min = 0;
  int32_t max = 0;

  // Facts about the texts, of which the empty one is left out of the sets.
  bool is_nullable = false;
  CodePointSet first = {};    // the characters that texts begin with
  CodePointSet goes_on = {};  // the characters that could make the last terminal longer
};

struct LarkTerminal {
  std::string name;
  std::u32string text;   // if it is this text; then there is no machine
  StateMachine machine;  // without the empty text
  bool is_nullable = false;
  CodePointSet first;
  CodePointSet goes_on;
};

struct LarkRule {
  std::string name;
  LarkPartId body = -1;
};

class LarkSymbols {
 public:
  // Both outlive the symbols.
  LarkSymbols(const LarkDocument* document, Budget* budget)
      : document_(*document), budget_(budget), machines_(document, budget) {}

  // Resolves what rule `start` reaches: that is rules()[0]. INVALID_ARGUMENT names what is wrong.
  absl::Status Resolve();

  const std::vector<LarkPart>& parts() const { return parts_; }
  const LarkPart& part(LarkPartId id) const { return parts_[static_cast<size_t>(id)]; }
  const std::vector<LarkRule>& rules() const { return rules_; }
  const std::vector<LarkTerminal>& terminals() const { return terminals_; }
  const std::vector<std::string>& schemas() const { return schemas_; }
  // Texts that may stand between terminals, in one piece or more; empty: none.
  const StateMachine& ignored() const { return ignored_; }

 private:
  struct Symbol {
    bool is_rule = false;
    int32_t index = 0;
    auto operator<=>(const Symbol&) const = default;
  };
  using Bindings = std::map<std::string, Symbol>;
  struct Unresolved {
    int32_t rule;
    LarkNodeId body;
    Bindings bindings;
  };

  absl::StatusOr<Symbol> RuleNamed(const std::string& name, std::vector<Symbol> arguments);
  absl::StatusOr<Symbol> TerminalOf(LarkNodeId node);
  absl::StatusOr<Symbol> SymbolOf(LarkNodeId node, const Bindings& bindings, int depth);
  absl::StatusOr<LarkPartId> PartOf(LarkNodeId node, const Bindings& bindings, int depth);
  LarkPartId Add(LarkPart part);
  absl::Status FindIgnored();
  absl::Status FindFacts();
  absl::StatusOr<bool> UpdateFacts(LarkPartId id);

  const LarkDocument& document_;
  Budget* const budget_;
  LarkTerminals machines_;
  std::vector<LarkPart> parts_;
  std::vector<LarkRule> rules_;
  std::vector<LarkTerminal> terminals_;
  std::vector<std::string> schemas_;
  StateMachine ignored_;
  std::vector<Unresolved> unresolved_;
  std::map<std::pair<std::string, std::vector<Symbol>>, Symbol> rule_of_;
  std::map<std::tuple<LarkKind, std::u32string, std::string>, Symbol> terminal_of_;
};

}  // namespace heddle::engine::grammar
