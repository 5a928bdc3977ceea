// The tests of `x is ...`.
#include "base/status.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/operators.h"

namespace heddle::engine::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// Makes a test that looks only at the value.
template <bool (*Holds)(const Value&)>
Result Property(Heap&, const Value& self, const Args& args) {
  if (!args.positional.empty() || !args.named.empty()) {
    return TemplateError("this test takes no arguments");
  }
  return Value::Bool(Holds(self));
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsTrue(const Value& v) { return v.is_bool() && v.integer() != 0; }
bool IsFalse(const Value& v) { return v.is_bool() && v.integer() == 0; }
bool IsInteger(const Value& v) { return v.kind() == Kind::kInt || v.kind() == Kind::kWideInt; }
bool IsFloat(const Value& v) { return v.kind() == Kind::kFloat; }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsString(const Value& v) { return v.is_string(); }
bool IsMapping(const Value& v) { return v.is_dict(); }
bool IsIterableValue(const Value& v) { return IsIterable(v); }
bool IsMarkup(const Value& v) { return v.is_markup(); }
bool IsCallable(const Value& v) {
  return v.kind() == Kind::kCallable || v.kind() == Kind::kLoop || v.is_undefined();
}
bool IsSequence(const Value& v) {
  if (v.is_string() || v.is_dict() || v.is_undefined()) return true;
  if (!v.is_sequence()) return false;
  switch (v.sequence_kind()) {
    case SequenceKind::kList:
    case SequenceKind::kTuple:
    case SequenceKind::kRange:
    case SequenceKind::kGroup:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<bool> Divides(Heap& heap, const Value& value, const Value& divisor, int64_t rest) {
  HEDDLE_ASSIGN_OR_RETURN(Value remainder, Arithmetic(heap, BinaryOp::kMod, value, divisor));
  return Equals(heap, remainder, Value::Int(rest));
}

template <int64_t rest>
Result Parity(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(bool holds, Divides(heap, self, Value::Int(2), rest));
  return Value::Bool(holds);
}

Result DivisibleBy(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "divisibleby", 1, {"num"}));
  HEDDLE_ASSIGN_OR_RETURN(bool holds, Divides(heap, self, bound[0], 0));
  return Value::Bool(holds);
}

template <CompareOp op>
Result CompareTo(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "comparison", 1, {"other"}));
  HEDDLE_ASSIGN_OR_RETURN(bool holds, Compare(heap, op, self, bound[0]));
  return Value::Bool(holds);
}

Result SameAs(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "sameas", 1, {"other"}));
  const Value& other = bound[0];
  if (self.kind() != other.kind()) return Value::Bool(false);
  if (self.is_sequence() || self.is_dict() || self.kind() == Kind::kNamespace) {
    return Value::Bool(self.identity() == other.identity());
  }
  HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, self, other));
  return Value::Bool(same);
}

// "x" is lower: str(x) has cased characters and all are of that case.
template <bool upper>
Result CaseTest(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  MethodSet methods = FindMethods(upper ? "isupper" : "islower");
  return methods.of_text->function(heap, Value::String(text), Args());
}

Result IsFilterName(Heap&, const Value& self, const Args&) {
  return Value::Bool(self.is_string() && FindFilter(self.text()) != nullptr);
}

Result IsTestName(Heap&, const Value& self, const Args&) {
  return Value::Bool(self.is_string() && FindTest(self.text()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"defined", Property<IsDefined>},
    {"undefined", Property<IsUndefined>},
    {"none", Property<IsNone>},
    {"boolean", Property<IsBoolean>},
    {"true", Property<IsTrue>},
    {"false", Property<IsFalse>},
    {"integer", Property<IsInteger>},
    {"float", Property<IsFloat>},
    {"number", Property<IsNumber>},
    {"string", Property<IsString>},
    {"mapping", Property<IsMapping>},
    {"iterable", Property<IsIterableValue>},
    {"sequence", Property<IsSequence>},
    {"callable", Property<IsCallable>},
    {"escaped", Property<IsMarkup>},
    {"odd", Parity<1>},
    {"even", Parity<0>},
    {"divisibleby", DivisibleBy},
    {"lower", CaseTest<false>},
    {"upper", CaseTest<true>},
    {"sameas", SameAs},
    {"in", CompareTo<CompareOp::kIn>},
    {"filter", IsFilterName},
    {"test", IsTestName},
    {"==", CompareTo<CompareOp::kEq>},
    {"eq", CompareTo<CompareOp::kEq>},
    {"equalto", CompareTo<CompareOp::kEq>},
    {"!=", CompareTo<CompareOp::kNe>},
    {"ne", CompareTo<CompareOp::kNe>},
    {">", CompareTo<CompareOp::kGt>},
    {"gt", CompareTo<CompareOp::kGt>},
    {"greaterthan", CompareTo<CompareOp::kGt>},
    {">=", CompareTo<CompareOp::kGe>},
    {"ge", CompareTo<CompareOp::kGe>},
    {"<", CompareTo<CompareOp::kLt>},
    {"lt", CompareTo<CompareOp::kLt>},
    {"lessthan", CompareTo<CompareOp::kLt>},
    {"<=", CompareTo<CompareOp::kLe>},
    {"le", CompareTo<CompareOp::kLe>},
};

}  // namespace

std::span<const Builtin> Tests() { return kTests; }

}  // namespace heddle::engine::text::jinja
