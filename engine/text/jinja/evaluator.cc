#include "engine/text/jinja/evaluator.h"

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::text::jinja {

void Scope::Set(SymbolId symbol, const Value& value) {
  for (auto& [id, old] : variables) {
    if (id == symbol) {
      old = value;
      return;
    }
  }
  variables.emplace_back(symbol, value);
}

const Value* Scope::Find(SymbolId symbol) const {
  for (const auto& [id, value] : variables) {
    if (id == symbol) return &value;
  }
  return nullptr;
}

// Counts the nodes being evaluated at once, which bounds the stack.
class Evaluator::Depth {
 public:
  explicit Depth(int* depth) : depth_(depth) { ++*depth_; }
  ~Depth() { --*depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int* depth_;
};

Evaluator::Evaluator(const Template& parsed, const TemplateLimits& limits,
                     const std::function<std::tm()>& now)
    : template_(parsed), now_(now), heap_(limits) {}

absl::StatusOr<std::string> Evaluator::Run(const nlohmann::ordered_json& context) {
  HEDDLE_RETURN_IF_ERROR(BindContext(context));
  scope_ = OpenScope(nullptr);
  std::string out;
  out_ = &out;
  absl::Status status = Execute(template_.body);
  if (status.ok()) return out;
  if (error_line_ == 0) return status;
  return absl::Status(status.code(), base::StrCat("line ", error_line_, ": ", status.message()));
}

absl::Status Evaluator::BindContext(const nlohmann::ordered_json& context) {
  if (!context.is_object()) {
    return absl::InvalidArgumentError(base::StrCat(
        "a template's context is an object of its variables, not ", context.type_name()));
  }
  context_.resize(template_.symbols.size());
  BindGlobals();
  for (size_t i = 0; i < template_.symbols.size(); ++i) {
    auto found = context.find(template_.symbols[i]);
    if (found == context.end()) continue;
    HEDDLE_ASSIGN_OR_RETURN(context_[i], FromJson(heap_, *found));
  }
  return heap_.Check();
}

void Evaluator::BindGlobals() {
  static constexpr std::pair<std::string_view, Global> kGlobals[] = {
      {"range", Global::kRange},
      {"namespace", Global::kNamespace},
      {"dict", Global::kDict},
      {"raise_exception", Global::kRaiseException},
      {"strftime_now", Global::kStrftimeNow}};
  for (size_t i = 0; i < template_.symbols.size(); ++i) {
    for (const auto& [name, global] : kGlobals) {
      if (template_.symbols[i] != name) continue;
      Callable callable{.kind = Callable::Kind::kGlobal, .name = name, .global = global};
      context_[i] = Value::Of(heap_.New<Callable>(callable));
    }
  }
}

Value Evaluator::Lookup(SymbolId symbol) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* found = scope->Find(symbol)) return *found;
  }
  const Value& value = context_[symbol];
  if (!value.is_missing()) return value;
  return Value::UndefinedVariable(template_.symbols[symbol]);
}

absl::StatusOr<Value> Evaluator::Evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return static_cast<const ConstExpr&>(expr).value;
  if (expr.kind == ExprKind::kName) return Lookup(static_cast<const NameExpr&>(expr).symbol);
  heap_.Tick();
  Depth depth(&depth_);
  absl::Status status = heap_.Check();
  if (status.ok() && depth_ > heap_.limits().max_depth) {
    status = absl::ResourceExhaustedError(
        base::StrCat("the evaluation nests deeper than ", heap_.limits().max_depth, " levels"));
  }
  if (status.ok()) {
    absl::StatusOr<Value> value = EvaluateNode(expr);
    if (value.ok()) [[likely]]
      return value;
    status = std::move(value).status();
  }
  if (error_line_ == 0) error_line_ = expr.line;
  return status;
}

absl::StatusOr<Value> Evaluator::EvaluateNode(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return static_cast<const ConstExpr&>(expr).value;
    case ExprKind::kName:
      return Lookup(static_cast<const NameExpr&>(expr).symbol);
    case ExprKind::kSequence:
      return EvaluateSequence(static_cast<const SequenceExpr&>(expr));
    case ExprKind::kDict:
      return EvaluateDict(static_cast<const DictExpr&>(expr));
    case ExprKind::kAttribute:
      return EvaluateAttribute(static_cast<const AttributeExpr&>(expr));
    case ExprKind::kItem:
      return EvaluateItem(static_cast<const ItemExpr&>(expr));
    case ExprKind::kSlice:
      return EvaluateSlice(static_cast<const SliceExpr&>(expr));
    case ExprKind::kCall:
      return EvaluateCall(static_cast<const CallExpr&>(expr));
    case ExprKind::kFilter:
      return EvaluateFilter(static_cast<const FilterExpr&>(expr));
    case ExprKind::kTest:
      return EvaluateTest(static_cast<const TestExpr&>(expr));
    case ExprKind::kUnary:
      return EvaluateUnary(static_cast<const UnaryExpr&>(expr));
    case ExprKind::kBinary:
      return EvaluateBinary(static_cast<const BinaryExpr&>(expr));
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return EvaluateLogical(static_cast<const BinaryExpr&>(expr));
    case ExprKind::kCompare:
      return EvaluateCompare(static_cast<const CompareExpr&>(expr));
    case ExprKind::kConcat:
      return EvaluateConcat(static_cast<const ConcatExpr&>(expr));
    case ExprKind::kConditional:
      return EvaluateConditional(static_cast<const ConditionalExpr&>(expr));
  }
  return absl::InternalError("unknown expression");
}

absl::StatusOr<Value> Evaluator::EvaluateOr(const ExprPtr& expr, const Value& otherwise) {
  if (expr == nullptr) return otherwise;
  return Evaluate(*expr);
}

absl::StatusOr<Value> Evaluator::EvaluateSequence(const SequenceExpr& expr) {
  std::vector<Value> items;
  items.reserve(expr.items.size());
  for (const ExprPtr& item : expr.items) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*item));
    items.push_back(value);
  }
  return expr.tuple ? heap_.Tuple(items) : heap_.List(items);
}

absl::StatusOr<Value> Evaluator::EvaluateDict(const DictExpr& expr) {
  Dict* dict = heap_.NewDict(expr.items.size());
  for (const auto& [key_expr, value_expr] : expr.items) {
    HEDDLE_ASSIGN_OR_RETURN(Value key, Evaluate(*key_expr));
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*value_expr));
    HEDDLE_RETURN_IF_ERROR(SetKey(heap_, dict, key, value));
  }
  return Value::Of(dict);
}

absl::StatusOr<Value> Evaluator::EvaluateAttribute(const AttributeExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value object, Evaluate(*expr.object));
  if (expr.methods.For(object) != nullptr) return GetAttribute(heap_, object, expr.name);
  return GetOwnAttribute(heap_, object, expr.name);
}

absl::StatusOr<Value> Evaluator::EvaluateItem(const ItemExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value object, Evaluate(*expr.object));
  HEDDLE_ASSIGN_OR_RETURN(Value index, Evaluate(*expr.index));
  return GetItem(heap_, object, index);
}

absl::StatusOr<Value> Evaluator::EvaluateSlice(const SliceExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value object, Evaluate(*expr.object));
  HEDDLE_ASSIGN_OR_RETURN(Value start, EvaluateOr(expr.start, Value::None()));
  HEDDLE_ASSIGN_OR_RETURN(Value stop, EvaluateOr(expr.stop, Value::None()));
  HEDDLE_ASSIGN_OR_RETURN(Value step, EvaluateOr(expr.step, Value::None()));
  return GetSlice(heap_, object, start, stop, step);
}

absl::StatusOr<Value> Evaluator::EvaluateFilter(const FilterExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value input, EvaluateOr(expr.input, block_text_));
  if (expr.filter == nullptr) {
    return TemplateError(base::StrCat("No filter named '", expr.name, "'."));
  }
  HEDDLE_ASSIGN_OR_RETURN(Args args, EvaluateArguments(expr.arguments));
  return expr.filter->function(heap_, input, args);
}

absl::StatusOr<Value> Evaluator::EvaluateTest(const TestExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value input, Evaluate(*expr.input));
  if (expr.test == nullptr) {
    return TemplateError(base::StrCat("No test named '", expr.name, "'."));
  }
  HEDDLE_ASSIGN_OR_RETURN(Args args, EvaluateArguments(expr.arguments));
  return expr.test->function(heap_, input, args);
}

absl::StatusOr<Value> Evaluator::EvaluateUnary(const UnaryExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value operand, Evaluate(*expr.operand));
  switch (expr.op) {
    case UnaryOp::kNot:
      return Value::Bool(!operand.Truthy());
    case UnaryOp::kNegate:
      return Negate(operand);
    case UnaryOp::kPlus:
      break;
  }
  if (operand.is_undefined()) return UndefinedError(operand);
  if (operand.is_bool()) return Value::Int(operand.integer());
  if (operand.is_number()) return operand;
  return TemplateError(base::StrCat("bad operand type for unary +: '", operand.TypeName(), "'"));
}

absl::StatusOr<Value> Evaluator::EvaluateBinary(const BinaryExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.left));
  HEDDLE_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.right));
  return Arithmetic(heap_, expr.op, left, right);
}

absl::StatusOr<Value> Evaluator::EvaluateLogical(const BinaryExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.left));
  bool decided = left.Truthy() == (expr.kind == ExprKind::kOr);
  if (decided) return left;
  return Evaluate(*expr.right);
}

absl::StatusOr<Value> Evaluator::EvaluateCompare(const CompareExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.first));
  for (const auto& [op, operand] : expr.rest) {
    HEDDLE_ASSIGN_OR_RETURN(Value right, Evaluate(*operand));
    HEDDLE_ASSIGN_OR_RETURN(bool holds, Compare(heap_, op, left, right));
    if (!holds) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Evaluator::EvaluateConcat(const ConcatExpr& expr) {
  std::string out;
  for (const ExprPtr& part : expr.parts) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*part));
    HEDDLE_RETURN_IF_ERROR(AppendStr(heap_, value, &out));
    HEDDLE_RETURN_IF_ERROR(heap_.Reserve(out.size()));
  }
  return heap_.String(out);
}

absl::StatusOr<Value> Evaluator::EvaluateConditional(const ConditionalExpr& expr) {
  HEDDLE_ASSIGN_OR_RETURN(Value test, Evaluate(*expr.test));
  if (test.Truthy()) return Evaluate(*expr.then);
  if (expr.otherwise != nullptr) return Evaluate(*expr.otherwise);
  return heap_.UndefinedHint(base::StrCat("the inline if-expression on line ", expr.line,
                                          " evaluated to false and no else section was defined."));
}

absl::StatusOr<Value> FromJson(Heap& heap, const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueNesting) {
    return absl::InvalidArgumentError(
        base::StrCat("the template's variables nest deeper than ", kMaxValueNesting, " levels"));
  }
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned: {
      uint64_t number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return Value::WideInt(number);
      return Value::Int(static_cast<int64_t>(number));
    }
    case nlohmann::ordered_json::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string: {
      std::string_view text = json.get_ref<const std::string&>();
      if (text.size() > heap.limits().max_built_bytes) return heap.Reserve(text.size());
      return Value::String(text);
    }
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) {
        HEDDLE_ASSIGN_OR_RETURN(Value value, FromJson(heap, item, depth + 1));
        items.push_back(value);
      }
      return heap.List(items);
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict* dict = heap.NewDict(json.size());
      for (const auto& [key, item] : json.items()) {
        HEDDLE_ASSIGN_OR_RETURN(Value value, FromJson(heap, item, depth + 1));
        dict->entries.push_back({Value::String(key), value});
      }
      return Value::Of(dict);
    }
    default:
      return Value::None();
  }
}

}  // namespace heddle::engine::text::jinja
