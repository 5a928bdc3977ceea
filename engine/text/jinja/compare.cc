#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

absl::Status CheckNesting(int depth) {
  if (depth <= kMaxValueNesting) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      base::StrCat("a value nests deeper than ", kMaxValueNesting, " levels"));
}

// x86's long double holds every integer and every double exactly, as Python's comparison does.
long double Exact(const Value& v) {
  if (v.kind() == Kind::kFloat) return v.real();
  if (v.kind() == Kind::kWideInt) return static_cast<long double>(v.wide());
  return static_cast<long double>(v.integer());
}

bool NumbersEqual(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.kind() == Kind::kWideInt && b.kind() == Kind::kWideInt) return a.wide() == b.wide();
  return Exact(a) == Exact(b);
}

bool IsOrderedSequence(const Value& v) {
  return v.is_sequence(SequenceKind::kList) || v.is_sequence(SequenceKind::kTuple);
}

absl::StatusOr<bool> EqualsAt(Heap& heap, const Value& a, const Value& b, int depth);

absl::StatusOr<bool> SequencesEqual(Heap& heap, const Value& a, const Value& b, int depth) {
  if (a.sequence_kind() != b.sequence_kind()) return false;
  if (a.sequence_kind() == SequenceKind::kGenerator) return a.identity() == b.identity();
  const Sequence& left = a.sequence();
  const Sequence& right = b.sequence();
  if (left.size != right.size) return false;
  for (uint32_t i = 0; i < left.size; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(bool same, EqualsAt(heap, left.items[i], right.items[i], depth + 1));
    if (!same) return false;
  }
  return true;
}

absl::StatusOr<bool> DictsEqual(Heap& heap, const Dict& a, const Dict& b, int depth) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const Entry& entry : a.entries) {
    HEDDLE_ASSIGN_OR_RETURN(const Value* other, FindKey(heap, b, entry.key));
    if (other == nullptr) return false;
    HEDDLE_ASSIGN_OR_RETURN(bool same, EqualsAt(heap, entry.value, *other, depth + 1));
    if (!same) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualsAt(Heap& heap, const Value& a, const Value& b, int depth) {
  heap.Tick();
  if (a.is_string() && b.is_string()) {
    if (a.text().size() != b.text().size()) return false;
    heap.Scan(a.text().size());
    return a.text() == b.text();
  }
  if (a.is_number() && b.is_number()) return NumbersEqual(a, b);
  if (a.kind() != b.kind()) return false;
  if (a.is_none() || a.is_undefined()) return true;
  if (!a.is_sequence() && !a.is_dict()) return a.identity() == b.identity();
  HEDDLE_RETURN_IF_ERROR(CheckNesting(depth));
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  if (a.is_sequence()) return SequencesEqual(heap, a, b, depth);
  return DictsEqual(heap, a.dict(), b.dict(), depth);
}

int ThreeWay(long double a, long double b) { return a < b ? -1 : a > b ? 1 : 0; }

int OrderNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  if (a.kind() == Kind::kWideInt && b.kind() == Kind::kWideInt) {
    return a.wide() < b.wide() ? -1 : a.wide() > b.wide() ? 1 : 0;
  }
  return ThreeWay(Exact(a), Exact(b));
}

absl::StatusOr<int> OrderAt(Heap& heap, const Value& a, const Value& b, std::string_view op,
                            int depth) {
  HEDDLE_RETURN_IF_ERROR(CheckNesting(depth));
  heap.Tick();
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  if (a.is_string() && b.is_string()) {
    heap.Scan(std::min(a.text().size(), b.text().size()));
    int order = a.text().compare(b.text());  // UTF-8 sorts in the order of its code points
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_number() && b.is_number()) return OrderNumbers(a, b);
  if (IsOrderedSequence(a) && IsOrderedSequence(b) && a.sequence_kind() == b.sequence_kind()) {
    const Sequence& left = a.sequence();
    const Sequence& right = b.sequence();
    for (uint32_t i = 0; i < std::min(left.size, right.size); ++i) {
      HEDDLE_ASSIGN_OR_RETURN(bool same, EqualsAt(heap, left.items[i], right.items[i], depth + 1));
      if (!same) return OrderAt(heap, left.items[i], right.items[i], op, depth + 1);
    }
    return left.size < right.size ? -1 : left.size > right.size ? 1 : 0;
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return TemplateError(base::StrCat("'", op, "' not supported between instances of '", a.TypeName(),
                                    "' and '", b.TypeName(), "'"));
}

}  // namespace

absl::StatusOr<bool> Equals(Heap& heap, const Value& a, const Value& b) {
  return EqualsAt(heap, a, b, 0);
}

absl::StatusOr<int> Order(Heap& heap, const Value& a, const Value& b, std::string_view op) {
  return OrderAt(heap, a, b, op, 0);
}

absl::StatusOr<bool> Contains(Heap& heap, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) return UndefinedError(item);
    if (!item.is_string()) {
      return TemplateError(
          base::StrCat("'in <string>' requires string as left operand, not ", item.TypeName()));
    }
    heap.Scan(container.text().size() + item.text().size());
    return Find(container.text(), item.text()) != std::string_view::npos;
  }
  if (container.is_dict()) {
    HEDDLE_ASSIGN_OR_RETURN(const Value* found, FindKey(heap, container.dict(), item));
    return found != nullptr;
  }
  if (!IsIterable(container)) {
    return TemplateError(
        base::StrCat("argument of type '", container.TypeName(), "' is not iterable"));
  }
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, container));
  for (const Value& candidate : items) {
    HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, candidate, item));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<bool> Compare(Heap& heap, CompareOp op, const Value& a, const Value& b) {
  // NaN has no order.
  bool nan = a.is_number() && b.is_number() &&
             (a.AsDouble() != a.AsDouble() || b.AsDouble() != b.AsDouble());
  switch (op) {
    case CompareOp::kEq:
      return Equals(heap, a, b);
    case CompareOp::kNe: {
      HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, a, b));
      return !same;
    }
    case CompareOp::kIn:
      return Contains(heap, b, a);
    case CompareOp::kNotIn: {
      HEDDLE_ASSIGN_OR_RETURN(bool inside, Contains(heap, b, a));
      return !inside;
    }
    case CompareOp::kLt: {
      HEDDLE_ASSIGN_OR_RETURN(int order, Order(heap, a, b, "<"));
      return order < 0 && !nan;
    }
    case CompareOp::kLe: {
      HEDDLE_ASSIGN_OR_RETURN(int order, Order(heap, a, b, "<="));
      return order <= 0 && !nan;
    }
    case CompareOp::kGt: {
      HEDDLE_ASSIGN_OR_RETURN(int order, Order(heap, a, b, ">"));
      return order > 0 && !nan;
    }
    case CompareOp::kGe: {
      HEDDLE_ASSIGN_OR_RETURN(int order, Order(heap, a, b, ">="));
      return order >= 0 && !nan;
    }
  }
  return false;
}

absl::StatusOr<const Value*> FindKey(Heap& heap, const Dict& dict, const Value& key) {
  heap.Scan(dict.entries.size() * 16);
  if (key.is_string()) return dict.Find(key.text());
  for (const Entry& entry : dict.entries) {
    if (entry.key.is_string()) continue;
    HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, entry.key, key));
    if (same) return &entry.value;
  }
  return nullptr;
}

absl::Status SetKey(Heap& heap, Dict* dict, const Value& key, const Value& value) {
  bool hashable = key.is_string() || key.is_number() || key.is_none() || key.is_undefined() ||
                  (key.is_sequence() && !key.is_sequence(SequenceKind::kList));
  if (!hashable) {
    return TemplateError(base::StrCat("unhashable type: '", key.TypeName(), "'"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const Value* found, FindKey(heap, *dict, key));
  if (found != nullptr) {
    *const_cast<Value*>(found) = value;
    return absl::OkStatus();
  }
  if (dict->entries.size() == dict->entries.capacity()) {
    heap.Charge((dict->entries.size() + 1) * sizeof(Entry));
  }
  dict->entries.push_back({key, value});
  return heap.Check();
}

}  // namespace heddle::engine::text::jinja
