// Calls: arguments, methods, macros, and the functions that transformers offers to templates.
#include <ctime>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/evaluator.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"

namespace heddle::engine::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // Jinja2's sandbox: MAX_RANGE

absl::StatusOr<int64_t> IntegerArgument(const Value& value) {
  if (value.is_integer()) return value.integer();
  if (value.is_undefined()) return UndefinedError(value);
  return TemplateError(
      base::StrCat("'", value.TypeName(), "' object cannot be interpreted as an integer"));
}

absl::StatusOr<Value> MakeRange(Heap& heap, const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    return TemplateError("range takes one to three positional arguments");
  }
  HEDDLE_ASSIGN_OR_RETURN(int64_t first, IntegerArgument(args.positional[0]));
  int64_t start = 0;
  int64_t stop = first;
  int64_t step = 1;
  if (args.positional.size() > 1) {
    start = first;
    HEDDLE_ASSIGN_OR_RETURN(stop, IntegerArgument(args.positional[1]));
  }
  if (args.positional.size() > 2) {
    HEDDLE_ASSIGN_OR_RETURN(step, IntegerArgument(args.positional[2]));
  }
  if (step == 0) return TemplateError("range() arg 3 must not be zero");
  std::vector<Value> items;
  while (step > 0 ? start < stop : start > stop) {
    if (items.size() == kMaxRange) {
      return TemplateError(base::StrCat(
          "Range too big. The sandbox blocks ranges larger than MAX_RANGE (", kMaxRange, ")."));
    }
    items.push_back(Value::Int(start));
    if (__builtin_add_overflow(start, step, &start)) break;
  }
  return heap.MakeSequence(SequenceKind::kRange, items);
}

// dict(mapping_or_pairs, **named) into `dict`.
absl::Status FillDict(Heap& heap, const Args& args, Dict* dict) {
  if (args.positional.size() > 1) {
    return TemplateError(
        base::StrCat("dict expected at most 1 argument, got ", args.positional.size()));
  }
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_dict()) {
      for (const Entry& entry : source.dict().entries) {
        HEDDLE_RETURN_IF_ERROR(SetKey(heap, dict, entry.key, entry.value));
      }
    } else {
      HEDDLE_ASSIGN_OR_RETURN(auto pairs, Iterate(heap, source));
      for (const Value& pair : pairs) {
        HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, pair));
        if (items.size() != 2) {
          return TemplateError(base::StrCat("dictionary update sequence element has length ",
                                            items.size(), "; 2 is required"));
        }
        HEDDLE_RETURN_IF_ERROR(SetKey(heap, dict, items[0], items[1]));
      }
    }
  }
  for (const auto& [name, value] : args.named) {
    HEDDLE_RETURN_IF_ERROR(SetKey(heap, dict, Value::String(name), value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Value> Evaluator::EvaluateCall(const CallExpr& expr) {
  if (expr.callee->kind == ExprKind::kAttribute) {  // x.method(...) needs no bound method
    const auto& attribute = static_cast<const AttributeExpr&>(*expr.callee);
    HEDDLE_ASSIGN_OR_RETURN(Value object, Evaluate(*attribute.object));
    const Builtin* method = attribute.methods.For(object);
    if (method != nullptr && method->function != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(Args args, EvaluateArguments(expr.arguments));
      return method->function(heap_, object, args);
    }
    absl::StatusOr<Value> callee = method != nullptr
                                       ? GetAttribute(heap_, object, attribute.name)
                                       : GetOwnAttribute(heap_, object, attribute.name);
    HEDDLE_RETURN_IF_ERROR(callee.status());
    HEDDLE_ASSIGN_OR_RETURN(Args args, EvaluateArguments(expr.arguments));
    return Call(*callee, args);
  }
  HEDDLE_ASSIGN_OR_RETURN(Value callee, Evaluate(*expr.callee));
  HEDDLE_ASSIGN_OR_RETURN(Args args, EvaluateArguments(expr.arguments));
  return Call(callee, args);
}

absl::StatusOr<Args> Evaluator::EvaluateArguments(const CallArguments& arguments) {
  Args args;
  for (const ExprPtr& expr : arguments.positional) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    args.positional.push_back(value);
  }
  for (const auto& [name, expr] : arguments.named) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    args.named.emplace_back(name, value);
  }
  if (arguments.star != nullptr || arguments.star_star != nullptr) {
    HEDDLE_RETURN_IF_ERROR(AppendStarArguments(arguments, &args));
  }
  return args;
}

absl::Status Evaluator::AppendStarArguments(const CallArguments& arguments, Args* args) {
  if (arguments.star != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*arguments.star));
    HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap_, value));
    heap_.Charge(items.size_bytes());
    args->positional.insert(args->positional.end(), items.begin(), items.end());
  }
  if (arguments.star_star != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, Evaluate(*arguments.star_star));
    if (!value.is_dict()) return TemplateError("argument after ** must be a mapping");
    for (const Entry& entry : value.dict().entries) {
      if (!entry.key.is_string()) return TemplateError("keywords must be strings");
      args->named.emplace_back(entry.key.text(), entry.value);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::Call(const Value& callee, const Args& args) {
  if (callee.is_undefined()) return UndefinedError(callee);
  if (callee.kind() == Kind::kLoop) return RecurseLoop(callee.loop(), args);
  if (callee.kind() != Kind::kCallable) {
    return TemplateError(base::StrCat("'", callee.TypeName(), "' object is not callable"));
  }
  const Callable& callable = callee.callable();
  switch (callable.kind) {
    case Callable::Kind::kGlobal:
      return CallGlobal(callable, args);
    case Callable::Kind::kMethod:
      return callable.method->function(heap_, callable.self, args);
    case Callable::Kind::kLoopCycle:
      return CycleLoop(callable, args);
    case Callable::Kind::kLoopChanged:
      return LoopChanged(callable, args);
    case Callable::Kind::kMacro:
      return CallMacro(callable, args);
  }
  return absl::InternalError("unknown callable");
}

absl::StatusOr<Value> Evaluator::CallGlobal(const Callable& callable, const Args& args) {
  switch (callable.global) {
    case Global::kRange:
      return MakeRange(heap_, args);
    case Global::kNamespace:
      return MakeNamespace(args);
    case Global::kDict:
      return MakeDict(args);
    case Global::kRaiseException: {
      HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "raise_exception", 1, {"message"}));
      std::string message;
      HEDDLE_RETURN_IF_ERROR(AppendStr(heap_, bound[0], &message));
      return TemplateError(message);
    }
    case Global::kStrftimeNow:
      return FormatTime(args);
  }
  return absl::InternalError("unknown function");
}

absl::StatusOr<Value> Evaluator::MakeNamespace(const Args& args) {
  Namespace* name_space = heap_.NewNamespace();
  HEDDLE_RETURN_IF_ERROR(FillDict(heap_, args, &name_space->attributes));
  for (const Entry& entry : name_space->attributes.entries) {
    if (!entry.key.is_string()) return TemplateError("a namespace's attributes are texts");
    if (entry.key.text().starts_with('_')) {
      return TemplateError(base::StrCat("the namespace attribute '", entry.key.text(),
                                        "' begins with an underscore; please rename it"));
    }
  }
  return Value::Of(name_space);
}

absl::StatusOr<Value> Evaluator::MakeDict(const Args& args) {
  Dict* dict = heap_.NewDict(args.named.size());
  HEDDLE_RETURN_IF_ERROR(FillDict(heap_, args, dict));
  return Value::Of(dict);
}

absl::StatusOr<Value> Evaluator::FormatTime(const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "strftime_now", 1, {"format"}));
  if (!bound[0].is_string()) {
    return TemplateError(
        base::StrCat("strftime() argument 1 must be str, not ", bound[0].TypeName()));
  }
  std::string format(bound[0].text());
  if (format.empty()) return Value::String("");
  if (format.size() > 256) return TemplateError("strftime_now takes a format of at most 256 bytes");
  std::tm time = now_();
  std::string buffer(8192, '\0');
  // A result that does not fit is as empty as that of a meaningless format ("%p" in some locales).
  size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &time);
  return heap_.String(std::string_view(buffer).substr(0, size));
}

absl::StatusOr<Value> Evaluator::CycleLoop(const Callable& callable, const Args& args) {
  if (args.positional.empty()) return TemplateError("no items for cycling given");
  return args.positional[callable.self.loop().index0 % args.positional.size()];
}

absl::StatusOr<Value> Evaluator::LoopChanged(const Callable& callable, const Args& args) {
  LoopState& loop = callable.self.loop();
  Value now = heap_.Tuple(args.positional);
  if (loop.last_changed != nullptr) {
    Value before = Value::Of(loop.last_changed, SequenceKind::kTuple);
    HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap_, before, now));
    if (same) return Value::Bool(false);
  }
  loop.last_changed = &now.sequence();
  return Value::Bool(true);
}

absl::StatusOr<Value> Evaluator::RecurseLoop(LoopState& loop, const Args& args) {
  if (!loop.statement->recursive) {
    return TemplateError("The loop must have the 'recursive' marker to be called recursively.");
  }
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "loop", 1, {"iterable"}));
  std::string text;
  std::string* outer_out = std::exchange(out_, &text);
  Scope* outer_scope = std::exchange(scope_, loop.scope);
  absl::Status status = RunLoop(*loop.statement, bound[0], loop.depth0 + 1);
  scope_ = outer_scope;
  out_ = outer_out;
  if (!status.ok()) return status;
  return heap_.String(text);
}

absl::StatusOr<Value> Evaluator::CallMacro(const Callable& callable, const Args& args) {
  const MacroStmt& macro = *callable.macro;
  Scope* outer = scope_;
  scope_ = OpenScope(callable.scope);
  absl::Status bound = BindMacro(macro, args, scope_);
  absl::StatusOr<Value> value = Value();
  if (bound.ok()) value = Capture(macro.body);
  CloseScope(scope_);
  scope_ = outer;
  if (!bound.ok()) return bound;
  return value;
}

absl::Status Evaluator::BindMacro(const MacroStmt& macro, const Args& args, Scope* scope) {
  HEDDLE_RETURN_IF_ERROR(BindExtraArguments(macro, args, scope));
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const MacroStmt::Parameter& parameter = macro.parameters[i];
    Value value;
    if (i < args.positional.size()) value = args.positional[i];
    for (const auto& [name, given] : args.named) {
      if (name == parameter.name && value.is_missing()) value = given;
    }
    if (value.is_missing() && parameter.otherwise != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(value, Evaluate(*parameter.otherwise));
    }
    if (value.is_missing()) {
      value =
          heap_.UndefinedHint(base::StrCat("parameter '", parameter.name, "' was not provided"));
    }
    scope->Set(parameter.symbol, value);
  }
  return absl::OkStatus();
}

// Binds arguments without parameters to varargs, kwargs and caller, or returns an error.
absl::Status Evaluator::BindExtraArguments(const MacroStmt& macro, const Args& args, Scope* scope) {
  Dict* kwargs = macro.uses_kwargs ? heap_.NewDict(0) : nullptr;
  Value caller = Value::UndefinedHint("No caller defined");
  for (const auto& [name, value] : args.named) {
    bool parameter = false;
    for (size_t i = args.positional.size(); i < macro.parameters.size(); ++i) {
      parameter = parameter || macro.parameters[i].name == name;
    }
    if (parameter) continue;
    if (name == "caller" && macro.uses_caller) {
      caller = value;
    } else if (kwargs != nullptr) {
      HEDDLE_RETURN_IF_ERROR(SetKey(heap_, kwargs, Value::String(name), value));
    } else {
      return TemplateError(
          base::StrCat("macro '", macro.name, "' takes no keyword argument '", name, "'"));
    }
  }
  size_t taken = std::min(args.positional.size(), macro.parameters.size());
  std::span<const Value> rest(args.positional.data() + taken, args.positional.size() - taken);
  if (!rest.empty() && !macro.uses_varargs) {
    return TemplateError(base::StrCat("macro '", macro.name, "' takes not more than ",
                                      macro.parameters.size(), " argument(s)"));
  }
  if (macro.uses_caller) scope->Set(template_.known.caller, caller);
  if (kwargs != nullptr) scope->Set(template_.known.kwargs, Value::Of(kwargs));
  if (macro.uses_varargs) scope->Set(template_.known.varargs, heap_.Tuple(rest));
  return absl::OkStatus();
}

}  // namespace heddle::engine::text::jinja
