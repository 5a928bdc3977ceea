// The terminals of a Lark grammar as automata over their characters. Internal to lark.
// Thread-safety: none; made and used by one compilation.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/lark/lark_document.h"

namespace heddle::engine::grammar {

class LarkTerminals {
 public:
  // Both outlive the terminals.
  LarkTerminals(const LarkDocument* document, Budget* budget)
      : document_(*document), budget_(budget) {}

  // The texts of a terminal, or of an expression without rules; perhaps the empty one among them.
  // INVALID_ARGUMENT: it uses a rule, itself, or what is not defined.
  absl::StatusOr<StateMachine> Named(const std::string& name) { return Named(name, 0); }
  absl::StatusOr<StateMachine> Of(LarkNodeId node) { return Of(node, 0); }

 private:
  absl::StatusOr<StateMachine> Named(const std::string& name, int depth);
  absl::StatusOr<StateMachine> Of(LarkNodeId node, int depth);
  absl::StatusOr<ExprId> Write(LarkNodeId node, int depth, Grammar* grammar);

  const LarkDocument& document_;
  Budget* const budget_;
  std::map<std::string, StateMachine> known_;
};

// The texts of `machine` of which no beginning is one of them.
StateMachine Shortest(StateMachine machine);

}  // namespace heddle::engine::grammar
