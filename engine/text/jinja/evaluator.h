// Renders a parsed template: walks its tree and appends to the output.
//
// Scopes: for, macro and with open one; if does not. Names resolve outwards from their place in the
// source (a macro sees the scope that it was defined in), and variables set in a loop are gone
// after each round, as in Jinja2.
// An object renders once. Thread-safety: none; many may share one Template.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/callable.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/limits.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine::text::jinja {

// The variables of one scope. There are few, so they are searched from the newest on.
struct Scope {
  Scope* parent = nullptr;  // null: the template's own scope; behind it come the context's values
  std::vector<std::pair<SymbolId, Value>> variables;
  bool captured = false;  // a macro refers to it

  void Set(SymbolId symbol, const Value& value);
  const Value* Find(SymbolId symbol) const;
};

class Evaluator {
 public:
  // All arguments must outlive the evaluator. `now` gives the local time for strftime_now.
  Evaluator(const Template& parsed, const TemplateLimits& limits,
            const std::function<std::tm()>& now);

  // The rendered text, or an error that begins with "line N: ".
  absl::StatusOr<std::string> Run(const nlohmann::ordered_json& context);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  class Depth;

  // Expressions (evaluator.cc).
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<Value> EvaluateNode(const Expr& expr);
  absl::StatusOr<Value> EvaluateOr(const ExprPtr& expr, const Value& otherwise);
  Value Lookup(SymbolId symbol) const;
  absl::StatusOr<Value> EvaluateSequence(const SequenceExpr& expr);
  absl::StatusOr<Value> EvaluateDict(const DictExpr& expr);
  absl::StatusOr<Value> EvaluateAttribute(const AttributeExpr& expr);
  absl::StatusOr<Value> EvaluateItem(const ItemExpr& expr);
  absl::StatusOr<Value> EvaluateSlice(const SliceExpr& expr);
  absl::StatusOr<Value> EvaluateFilter(const FilterExpr& expr);
  absl::StatusOr<Value> EvaluateTest(const TestExpr& expr);
  absl::StatusOr<Value> EvaluateUnary(const UnaryExpr& expr);
  absl::StatusOr<Value> EvaluateBinary(const BinaryExpr& expr);
  absl::StatusOr<Value> EvaluateLogical(const BinaryExpr& expr);
  absl::StatusOr<Value> EvaluateCompare(const CompareExpr& expr);
  absl::StatusOr<Value> EvaluateConcat(const ConcatExpr& expr);
  absl::StatusOr<Value> EvaluateConditional(const ConditionalExpr& expr);

  // Calls, macros and the environment's functions (calls.cc).
  absl::StatusOr<Value> EvaluateCall(const CallExpr& expr);
  absl::StatusOr<Args> EvaluateArguments(const CallArguments& arguments);
  absl::Status AppendStarArguments(const CallArguments& arguments, Args* args);
  absl::StatusOr<Value> Call(const Value& callee, const Args& args);
  absl::StatusOr<Value> CallGlobal(const Callable& callable, const Args& args);
  absl::StatusOr<Value> CallMacro(const Callable& callable, const Args& args);
  absl::Status BindMacro(const MacroStmt& macro, const Args& args, Scope* scope);
  absl::Status BindExtraArguments(const MacroStmt& macro, const Args& args, Scope* scope);
  absl::StatusOr<Value> MakeNamespace(const Args& args);
  absl::StatusOr<Value> MakeDict(const Args& args);
  absl::StatusOr<Value> FormatTime(const Args& args);
  absl::StatusOr<Value> CycleLoop(const Callable& callable, const Args& args);
  absl::StatusOr<Value> LoopChanged(const Callable& callable, const Args& args);
  absl::StatusOr<Value> RecurseLoop(LoopState& loop, const Args& args);

  // Statements (statements.cc).
  absl::Status Execute(const Block& block);
  absl::Status ExecuteStatement(const Stmt& stmt);
  absl::Status ExecuteOutput(const OutputStmt& stmt);
  absl::Status ExecuteIf(const IfStmt& stmt);
  absl::Status ExecuteFor(const ForStmt& stmt);
  absl::Status RunLoop(const ForStmt& stmt, const Value& iterable, int64_t depth0);
  absl::StatusOr<std::vector<Value>> FilterItems(const ForStmt& stmt, std::span<const Value> items);
  absl::Status ExecuteSet(const SetStmt& stmt);
  absl::Status ExecuteSetBlock(const SetBlockStmt& stmt);
  absl::Status ExecuteMacro(const MacroStmt& stmt);
  absl::Status ExecuteCallBlock(const CallBlockStmt& stmt);
  absl::Status ExecuteFilterBlock(const FilterBlockStmt& stmt);
  absl::Status ExecuteWith(const WithStmt& stmt);
  absl::Status ExecuteGeneration(const GenerationStmt& stmt);
  absl::Status Assign(const Target& target, const Value& value);
  absl::StatusOr<Value> Capture(const Block& block);
  absl::StatusOr<Value> MacroValue(const MacroStmt& stmt);
  absl::Status CheckOutput() const;
  Scope* OpenScope(Scope* parent);
  void CloseScope(Scope* scope);

  absl::Status BindContext(const nlohmann::ordered_json& context);
  void BindGlobals();

  const Template& template_;
  const std::function<std::tm()>& now_;
  Heap heap_;
  std::vector<Value> context_;  // by symbol; kMissing if neither context nor environment has it
  std::deque<Scope> scopes_;    // all scopes that are not reusable
  std::vector<Scope*> free_scopes_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  Value block_text_;  // the input of a filter block's innermost filter
  Flow flow_ = Flow::kNormal;
  int depth_ = 0;
  int error_line_ = 0;  // line of the innermost node that failed; 0: none yet
};

// Converts a JSON value. Texts stay where they are. Fails on nesting deeper than kMaxValueNesting.
absl::StatusOr<Value> FromJson(Heap& heap, const nlohmann::ordered_json& json, int depth = 0);

}  // namespace heddle::engine::text::jinja
