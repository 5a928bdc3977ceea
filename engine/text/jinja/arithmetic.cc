#include <cmath>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"

namespace heddle::engine::text::jinja {
namespace {

std::string_view Sign(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSub:
      return "-";
    case BinaryOp::kMul:
      return "*";
    case BinaryOp::kDiv:
      return "/";
    case BinaryOp::kFloorDiv:
      return "//";
    case BinaryOp::kMod:
      return "%";
    case BinaryOp::kPow:
      return "** or pow()";
  }
  return "?";
}

absl::Status Unsupported(BinaryOp op, const Value& a, const Value& b) {
  return TemplateError(base::StrCat("unsupported operand type(s) for ", Sign(op), ": '",
                                    a.TypeName(), "' and '", b.TypeName(), "'"));
}

absl::Status Overflow(BinaryOp op) {
  return TemplateError(base::StrCat("the result of ", Sign(op), " does not fit in 64 bits"));
}

absl::Status DivisionByZero(std::string_view what) {
  return TemplateError(base::StrCat(what, " by zero"));
}

absl::StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return TemplateError("0.0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return Overflow(BinaryOp::kPow);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow(BinaryOp::kPow);
  }
  return Value::Int(result);
}

absl::StatusOr<Value> IntegerDivision(BinaryOp op, int64_t a, int64_t b) {
  if (b == 0) {
    return DivisionByZero(op == BinaryOp::kMod ? "integer modulo" : "integer division or modulo");
  }
  if (b == -1) {  // INT64_MIN / -1 traps
    if (op == BinaryOp::kMod) return Value::Int(0);
    int64_t negated = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &negated)) return Overflow(op);
    return Value::Int(negated);
  }
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return Value::Int(op == BinaryOp::kMod ? remainder : quotient);
}

absl::StatusOr<Value> IntegerArithmetic(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kDiv:
      if (b == 0) return DivisionByZero("division");
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      return IntegerDivision(op, a, b);
    case BinaryOp::kPow:
      return IntegerPower(a, b);
  }
  if (overflow) return Overflow(op);
  return Value::Int(result);
}

absl::StatusOr<Value> FloatArithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSub:
      return Value::Float(a - b);
    case BinaryOp::kMul:
      return Value::Float(a * b);
    case BinaryOp::kDiv:
      if (b == 0) return DivisionByZero("float division");
      return Value::Float(a / b);
    case BinaryOp::kFloorDiv:
      if (b == 0) return DivisionByZero("float floor division");
      return Value::Float(std::floor(a / b));
    case BinaryOp::kMod: {
      if (b == 0) return DivisionByZero("float modulo");
      double remainder = std::fmod(a, b);
      if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
      return Value::Float(remainder);
    }
    case BinaryOp::kPow:
      if (a < 0 && b != std::floor(b)) {
        return TemplateError("a negative number cannot be raised to a fractional power");
      }
      return Value::Float(std::pow(a, b));
  }
  return Value::Float(0);
}

absl::StatusOr<Value> Repeat(Heap& heap, const Value& value, int64_t times) {
  uint64_t count = times > 0 ? static_cast<uint64_t>(times) : 0;
  bool text = value.is_string();
  uint64_t unit = text ? value.text().size() : value.sequence().size * sizeof(Value);
  if (unit != 0 && count > heap.limits().max_built_bytes / unit) {
    return heap.Reserve(INT64_MAX);
  }
  HEDDLE_RETURN_IF_ERROR(heap.Reserve(unit * count));
  if (text) {
    std::string out;
    out.reserve(unit * count);
    for (uint64_t i = 0; unit != 0 && i < count; ++i) out.append(value.text());
    return heap.String(out, value.is_markup());
  }
  std::vector<Value> items;
  const Sequence& sequence = value.sequence();
  for (uint64_t i = 0; unit != 0 && i < count; ++i) {
    items.insert(items.end(), sequence.items, sequence.items + sequence.size);
  }
  return heap.MakeSequence(value.sequence_kind(), items);
}

bool IsRepeatable(const Value& value) {
  return value.is_string() || value.is_sequence(SequenceKind::kList) ||
         value.is_sequence(SequenceKind::kTuple);
}

absl::StatusOr<Value> AddTexts(Heap& heap, const Value& a, const Value& b) {
  if (!a.is_markup() && !b.is_markup()) return heap.Concat(a.text(), b.text());
  // Markup escapes the text that is added to it.
  return heap.Concat(Escape(heap, a).text(), Escape(heap, b).text(), /*markup=*/true);
}

absl::StatusOr<Value> Add(Heap& heap, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return AddTexts(heap, a, b);
  if (a.is_string() && !b.is_undefined()) {
    return TemplateError(
        base::StrCat("can only concatenate str (not \"", b.TypeName(), "\") to str"));
  }
  bool lists = a.is_sequence(SequenceKind::kList) || a.is_sequence(SequenceKind::kTuple);
  if (lists && b.is_sequence() && b.sequence_kind() == a.sequence_kind()) {
    const Sequence& left = a.sequence();
    const Sequence& right = b.sequence();
    std::vector<Value> items(left.items, left.items + left.size);
    items.insert(items.end(), right.items, right.items + right.size);
    return heap.MakeSequence(a.sequence_kind(), items);
  }
  if (lists && !b.is_undefined()) {
    return TemplateError(base::StrCat("can only concatenate ", a.TypeName(), " (not \"",
                                      b.TypeName(), "\") to ", a.TypeName()));
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return Unsupported(BinaryOp::kAdd, a, b);
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Heap& heap, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return IntegerArithmetic(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) {
    if (a.kind() != Kind::kFloat && b.kind() != Kind::kFloat) return Overflow(op);
    return FloatArithmetic(op, a.AsDouble(), b.AsDouble());
  }
  if (op == BinaryOp::kAdd) return Add(heap, a, b);
  if (op == BinaryOp::kMod && a.is_string()) return FormatPercent(heap, a, b);
  if (op == BinaryOp::kMul) {
    if (IsRepeatable(a) && b.is_integer()) return Repeat(heap, a, b.integer());
    if (a.is_integer() && IsRepeatable(b)) return Repeat(heap, b, a.integer());
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return Unsupported(op, a, b);
}

absl::StatusOr<Value> Negate(const Value& a) {
  if (a.is_integer()) return IntegerArithmetic(BinaryOp::kSub, 0, a.integer());
  if (a.kind() == Kind::kFloat) return Value::Float(-a.real());
  if (a.is_undefined()) return UndefinedError(a);
  return TemplateError(base::StrCat("bad operand type for unary -: '", a.TypeName(), "'"));
}

}  // namespace heddle::engine::text::jinja
