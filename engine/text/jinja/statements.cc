// The statements of a template; expressions are in evaluator.cc, calls in calls.cc.
#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/evaluator.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"

namespace heddle::engine::text::jinja {

Scope* Evaluator::OpenScope(Scope* parent) {
  Scope* scope = nullptr;
  if (free_scopes_.empty()) {
    heap_.Charge(sizeof(Scope));
    scope = &scopes_.emplace_back();
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope->parent = parent;
  return scope;
}

void Evaluator::CloseScope(Scope* scope) {
  // A scope inside a captured one is not reachable elsewhere; the captured one stays as it is.
  if (scope->captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

absl::Status Evaluator::CheckOutput() const {
  if (out_->size() <= heap_.limits().max_output_bytes) [[likely]]
    return absl::OkStatus();
  return absl::ResourceExhaustedError(base::StrCat("the template's output is longer than ",
                                                   heap_.limits().max_output_bytes, " bytes"));
}

absl::Status Evaluator::Execute(const Block& block) {
  if (++depth_ > heap_.limits().max_depth) {
    --depth_;
    return absl::ResourceExhaustedError(
        base::StrCat("the evaluation nests deeper than ", heap_.limits().max_depth, " levels"));
  }
  absl::Status status;
  for (const auto& stmt : block) {
    heap_.Tick();
    status = heap_.Check();
    if (status.ok()) status = ExecuteStatement(*stmt);
    if (!status.ok() && error_line_ == 0) error_line_ = stmt->line;
    if (!status.ok() || flow_ != Flow::kNormal) break;
  }
  --depth_;
  return status;
}

absl::Status Evaluator::ExecuteStatement(const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::kText:
      out_->append(static_cast<const TextStmt&>(stmt).text);
      return CheckOutput();
    case StmtKind::kOutput:
      return ExecuteOutput(static_cast<const OutputStmt&>(stmt));
    case StmtKind::kIf:
      return ExecuteIf(static_cast<const IfStmt&>(stmt));
    case StmtKind::kFor:
      return ExecuteFor(static_cast<const ForStmt&>(stmt));
    case StmtKind::kSet:
      return ExecuteSet(static_cast<const SetStmt&>(stmt));
    case StmtKind::kSetBlock:
      return ExecuteSetBlock(static_cast<const SetBlockStmt&>(stmt));
    case StmtKind::kMacro:
      return ExecuteMacro(static_cast<const MacroStmt&>(stmt));
    case StmtKind::kCallBlock:
      return ExecuteCallBlock(static_cast<const CallBlockStmt&>(stmt));
    case StmtKind::kFilterBlock:
      return ExecuteFilterBlock(static_cast<const FilterBlockStmt&>(stmt));
    case StmtKind::kWith:
      return ExecuteWith(static_cast<const WithStmt&>(stmt));
    case StmtKind::kGeneration:
      return ExecuteGeneration(static_cast<const GenerationStmt&>(stmt));
    case StmtKind::kBreak:
      flow_ = Flow::kBreak;
      return absl::OkStatus();
    case StmtKind::kContinue:
      flow_ = Flow::kContinue;
      return absl::OkStatus();
  }
  return absl::InternalError("unknown statement");
}

absl::Status Evaluator::ExecuteOutput(const OutputStmt& stmt) {
  HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.value));
  HEDDLE_RETURN_IF_ERROR(AppendStr(heap_, value, out_));
  return CheckOutput();
}

absl::Status Evaluator::ExecuteIf(const IfStmt& stmt) {
  for (const auto& [test, body] : stmt.branches) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*test));
    if (value.Truthy()) return Execute(body);
  }
  return Execute(stmt.otherwise);
}

absl::Status Evaluator::ExecuteFor(const ForStmt& stmt) {
  HEDDLE_ASSIGN_OR_RETURN(Value iterable, Evaluate(*stmt.iterable));
  return RunLoop(stmt, iterable, 0);
}

absl::StatusOr<std::vector<Value>> Evaluator::FilterItems(const ForStmt& stmt,
                                                          std::span<const Value> items) {
  std::vector<Value> kept;
  Scope* outer = scope_;
  scope_ = OpenScope(outer);
  absl::Status status;
  for (const Value& item : items) {
    status = Assign(stmt.target, item);
    if (!status.ok()) break;
    absl::StatusOr<Value> keep = Evaluate(*stmt.filter);
    status = keep.status();
    if (!status.ok()) break;
    if (keep->Truthy()) kept.push_back(item);
  }
  CloseScope(scope_);
  scope_ = outer;
  if (!status.ok()) return status;
  return kept;
}

absl::Status Evaluator::RunLoop(const ForStmt& stmt, const Value& iterable, int64_t depth0) {
  HEDDLE_ASSIGN_OR_RETURN(std::span<const Value> items, Iterate(heap_, iterable));
  if (stmt.filter != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<Value> kept, FilterItems(stmt, items));
    items = {heap_.List(kept).sequence().items, kept.size()};
  }
  Scope* outer = scope_;
  LoopState* loop = heap_.New<LoopState>(
      LoopState{.items = items, .depth0 = depth0, .statement = &stmt, .scope = outer});
  absl::Status status;
  for (size_t i = 0; i < items.size() && status.ok(); ++i) {
    heap_.Tick();
    status = heap_.Check();
    if (!status.ok()) break;
    loop->index0 = i;
    scope_ = OpenScope(outer);
    scope_->Set(template_.known.loop, Value::Of(loop));
    status = Assign(stmt.target, items[i]);
    if (status.ok()) status = Execute(stmt.body);
    CloseScope(scope_);
    scope_ = outer;
    Flow flow = std::exchange(flow_, Flow::kNormal);
    if (flow == Flow::kBreak) break;
  }
  if (!status.ok() || !items.empty()) return status;
  scope_ = OpenScope(outer);
  status = Execute(stmt.otherwise);
  CloseScope(scope_);
  scope_ = outer;
  return status;
}

absl::Status Evaluator::ExecuteSet(const SetStmt& stmt) {
  HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.value));
  return Assign(stmt.target, value);
}

absl::StatusOr<Value> Evaluator::Capture(const Block& block) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  absl::Status status = Execute(block);
  out_ = outer;
  if (!status.ok()) return status;
  return heap_.String(text);
}

absl::Status Evaluator::ExecuteSetBlock(const SetBlockStmt& stmt) {
  Scope* outer = scope_;
  scope_ = OpenScope(outer);
  absl::StatusOr<Value> value = Capture(stmt.body);
  CloseScope(scope_);
  scope_ = outer;
  if (value.ok() && stmt.filter != nullptr) {
    Value outer_text = std::exchange(block_text_, *value);
    value = Evaluate(*stmt.filter);
    block_text_ = outer_text;
  }
  HEDDLE_RETURN_IF_ERROR(value.status());
  return Assign(stmt.target, *value);
}

absl::StatusOr<Value> Evaluator::MacroValue(const MacroStmt& stmt) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  Callable callable{
      .kind = Callable::Kind::kMacro, .name = stmt.name, .macro = &stmt, .scope = scope_};
  return Value::Of(heap_.New<Callable>(callable));
}

absl::Status Evaluator::ExecuteMacro(const MacroStmt& stmt) {
  HEDDLE_ASSIGN_OR_RETURN(Value macro, MacroValue(stmt));
  scope_->Set(stmt.symbol, macro);
  return absl::OkStatus();
}

absl::Status Evaluator::ExecuteCallBlock(const CallBlockStmt& stmt) {
  const auto& call = static_cast<const CallExpr&>(*stmt.call);
  HEDDLE_ASSIGN_OR_RETURN(Value callee, Evaluate(*call.callee));
  HEDDLE_ASSIGN_OR_RETURN(Args args, EvaluateArguments(call.arguments));
  HEDDLE_ASSIGN_OR_RETURN(Value body, MacroValue(stmt.body));
  args.named.emplace_back("caller", body);
  HEDDLE_ASSIGN_OR_RETURN(Value value, Call(callee, args));
  HEDDLE_RETURN_IF_ERROR(AppendStr(heap_, value, out_));
  return CheckOutput();
}

absl::Status Evaluator::ExecuteFilterBlock(const FilterBlockStmt& stmt) {
  Scope* outer = scope_;
  scope_ = OpenScope(outer);
  absl::StatusOr<Value> value = Capture(stmt.body);
  CloseScope(scope_);
  scope_ = outer;
  HEDDLE_RETURN_IF_ERROR(value.status());
  Value outer_text = std::exchange(block_text_, *value);
  value = Evaluate(*stmt.filter);
  block_text_ = outer_text;
  HEDDLE_RETURN_IF_ERROR(value.status());
  HEDDLE_RETURN_IF_ERROR(AppendStr(heap_, *value, out_));
  return CheckOutput();
}

absl::Status Evaluator::ExecuteWith(const WithStmt& stmt) {
  std::vector<Value> values;  // all are evaluated before any name is bound
  for (const auto& [target, expr] : stmt.bindings) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    values.push_back(value);
  }
  Scope* outer = scope_;
  scope_ = OpenScope(outer);
  absl::Status status;
  for (size_t i = 0; i < values.size() && status.ok(); ++i) {
    status = Assign(stmt.bindings[i].first, values[i]);
  }
  if (status.ok()) status = Execute(stmt.body);
  CloseScope(scope_);
  scope_ = outer;
  return status;
}

absl::Status Evaluator::ExecuteGeneration(const GenerationStmt& stmt) {
  Scope* outer = scope_;
  scope_ = OpenScope(outer);
  absl::Status status = Execute(stmt.body);
  CloseScope(scope_);
  scope_ = outer;
  return status;
}

absl::Status Evaluator::Assign(const Target& target, const Value& value) {
  switch (target.kind) {
    case Target::Kind::kName:
      scope_->Set(target.symbol, value);
      return absl::OkStatus();
    case Target::Kind::kAttribute: {
      Value object = Lookup(target.symbol);
      if (object.kind() != Kind::kNamespace) {
        return TemplateError("cannot assign attribute on non-namespace object");
      }
      if (target.attribute.starts_with('_')) {
        return TemplateError(base::StrCat("the namespace attribute '", target.attribute,
                                          "' begins with an underscore; please rename it"));
      }
      return SetKey(heap_, &object.name_space().attributes, Value::String(target.attribute), value);
    }
    case Target::Kind::kTuple:
      break;
  }
  if (!IsIterable(value)) {
    return TemplateError(base::StrCat("cannot unpack non-iterable ", value.TypeName(), " object"));
  }
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap_, value));
  if (items.size() > target.items.size()) {
    return TemplateError(
        base::StrCat("too many values to unpack (expected ", target.items.size(), ")"));
  }
  if (items.size() < target.items.size()) {
    return TemplateError(base::StrCat("not enough values to unpack (expected ", target.items.size(),
                                      ", got ", items.size(), ")"));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(Assign(target.items[i], items[i]));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::text::jinja
