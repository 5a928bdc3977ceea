#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/callable.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

// The bounds of a slice over `size` elements, as Python clips them.
struct SliceRange {
  int64_t start;
  int64_t stop;
  int64_t step;
};

absl::StatusOr<int64_t> SliceBound(const Value& bound, int64_t size, int64_t otherwise, int64_t low,
                                   int64_t high) {
  if (bound.is_none() || bound.is_missing()) return otherwise;
  if (bound.is_undefined()) return UndefinedError(bound);
  if (!bound.is_integer()) {
    return TemplateError("slice indices must be integers or None or have an __index__ method");
  }
  int64_t i = bound.integer();
  if (i < 0) i = i < -size ? low : i + size;
  return std::clamp(i, low, high);
}

absl::StatusOr<SliceRange> ClipSlice(int64_t size, const Value& start, const Value& stop,
                                     const Value& step) {
  SliceRange range{0, 0, 1};
  if (step.is_integer()) range.step = step.integer();
  if (!step.is_integer() && !step.is_none() && !step.is_missing()) {
    return TemplateError("slice indices must be integers or None or have an __index__ method");
  }
  if (range.step == 0) return TemplateError("slice step cannot be zero");
  bool forward = range.step > 0;
  int64_t low = forward ? 0 : -1;
  int64_t high = forward ? size : size - 1;
  HEDDLE_ASSIGN_OR_RETURN(range.start, SliceBound(start, size, forward ? 0 : size - 1, low, high));
  HEDDLE_ASSIGN_OR_RETURN(range.stop, SliceBound(stop, size, forward ? size : -1, low, high));
  // A step beyond either end takes one element; the clamp keeps the loops below from overflowing.
  range.step = std::clamp<int64_t>(range.step, -size - 1, size + 1);
  return range;
}

Value SliceText(Heap& heap, const Value& object, const SliceRange& range) {
  std::string_view text = object.text();
  if (range.step == 1) {
    if (range.start >= range.stop) return Value::String("", object.is_markup());
    size_t begin = ByteOffset(text, static_cast<size_t>(range.start));
    std::string_view rest = text.substr(begin);
    size_t length = ByteOffset(rest, static_cast<size_t>(range.stop - range.start));
    return Value::String(rest.substr(0, length), object.is_markup());
  }
  std::vector<size_t> offsets;
  for (size_t pos = 0; pos < text.size(); NextCodePoint(text, &pos)) offsets.push_back(pos);
  offsets.push_back(text.size());
  heap.Charge(offsets.size() * sizeof(size_t));
  std::string out;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    size_t at = static_cast<size_t>(i);
    out.append(text.substr(offsets[at], offsets[at + 1] - offsets[at]));
  }
  return heap.String(out, object.is_markup());
}

Value ItemOfText(const Value& object, int64_t index) {
  std::string_view text = object.text();
  int64_t size = static_cast<int64_t>(CountCodePoints(text));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Value::UndefinedElement(object, index);
  size_t begin = ByteOffset(text, static_cast<size_t>(index));
  size_t end = begin;
  NextCodePoint(text, &end);
  return Value::String(text.substr(begin, end - begin), object.is_markup());
}

bool IsIndexable(const Value& object) {
  if (!object.is_sequence()) return false;
  SequenceKind kind = object.sequence_kind();
  return kind == SequenceKind::kList || kind == SequenceKind::kTuple ||
         kind == SequenceKind::kRange || kind == SequenceKind::kGroup;
}

absl::StatusOr<Value> ItemByInteger(Heap& heap, const Value& object, int64_t index) {
  if (IsIndexable(object)) {
    const Sequence& sequence = object.sequence();
    int64_t i = index < 0 ? index + static_cast<int64_t>(sequence.size) : index;
    if (i >= 0 && i < static_cast<int64_t>(sequence.size)) return sequence.items[i];
  } else if (object.is_string()) {
    heap.Scan(object.text().size());
    return ItemOfText(object, index);
  }
  return Value::UndefinedElement(object, index);
}

std::vector<Value> Characters(const Value& object) {
  std::vector<Value> items;
  std::string_view text = object.text();
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    NextCodePoint(text, &pos);
    items.push_back(Value::String(text.substr(begin, pos - begin), object.is_markup()));
  }
  return items;
}

absl::StatusOr<Value> LoopAttribute(Heap& heap, const Value& object, std::string_view name) {
  const LoopState& loop = object.loop();
  int64_t size = static_cast<int64_t>(loop.items.size());
  int64_t index0 = static_cast<int64_t>(loop.index0);
  if (name == "index0") return Value::Int(index0);
  if (name == "index") return Value::Int(index0 + 1);
  if (name == "first") return Value::Bool(index0 == 0);
  if (name == "last") return Value::Bool(index0 + 1 == size);
  if (name == "length") return Value::Int(size);
  if (name == "revindex") return Value::Int(size - index0);
  if (name == "revindex0") return Value::Int(size - index0 - 1);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "previtem") {
    if (index0 > 0) return loop.items[loop.index0 - 1];
    return Value::UndefinedHint("there is no previous item");
  }
  if (name == "nextitem") {
    if (index0 + 1 < size) return loop.items[loop.index0 + 1];
    return Value::UndefinedHint("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    Callable callable{
        .kind = name == "cycle" ? Callable::Kind::kLoopCycle : Callable::Kind::kLoopChanged,
        .name = name,
        .self = object};
    return Value::Of(heap.New<Callable>(callable));
  }
  return Value::UndefinedAttribute(object, name);
}

}  // namespace

bool IsIterable(const Value& value) {
  return value.is_sequence() || value.is_dict() || value.is_string() || value.is_undefined() ||
         value.kind() == Kind::kLoop;
}

absl::StatusOr<std::span<const Value>> Iterate(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kSequence: {
      const Sequence& sequence = value.sequence();
      if (value.sequence_kind() == SequenceKind::kGenerator) {
        if (sequence.consumed) return std::span<const Value>();
        sequence.consumed = true;
      }
      return std::span<const Value>(sequence.items, sequence.size);
    }
    case Kind::kDict: {
      std::vector<Value> keys;
      keys.reserve(value.dict().entries.size());
      for (const Entry& entry : value.dict().entries) keys.push_back(entry.key);
      return Iterate(heap, heap.List(keys));
    }
    case Kind::kString:
      HEDDLE_RETURN_IF_ERROR(heap.Reserve(value.text().size() * sizeof(Value)));
      return Iterate(heap, heap.List(Characters(value)));
    case Kind::kUndefined:
      return std::span<const Value>();
    default:
      return TemplateError(base::StrCat("'", value.TypeName(), "' object is not iterable"));
  }
}

absl::StatusOr<int64_t> Length(Heap& heap, const Value& value) {
  if (value.is_string()) {
    heap.Scan(value.text().size());
    return static_cast<int64_t>(CountCodePoints(value.text()));
  }
  if (value.is_sequence() && !value.is_sequence(SequenceKind::kGenerator)) {
    return static_cast<int64_t>(value.sequence().size);
  }
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (value.is_undefined()) return int64_t{0};
  if (value.kind() == Kind::kLoop) return static_cast<int64_t>(value.loop().items.size());
  return TemplateError(base::StrCat("object of type '", value.TypeName(), "' has no len()"));
}

absl::StatusOr<Value> GetItem(Heap& heap, const Value& object, const Value& index) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.is_dict()) {
    HEDDLE_ASSIGN_OR_RETURN(const Value* found, FindKey(heap, object.dict(), index));
    if (found != nullptr) return *found;
  } else if (index.is_integer()) {
    return ItemByInteger(heap, object, index.integer());
  }
  if (index.is_string()) {
    MethodSet methods = FindMethods(index.text());
    if (methods.For(object) != nullptr || !object.is_dict()) {
      return GetAttribute(heap, object, index.text());
    }
    return Value::UndefinedAttribute(object, index.text());
  }
  if (index.is_integer()) return Value::UndefinedElement(object, index.integer());
  std::string element;
  HEDDLE_RETURN_IF_ERROR(AppendRepr(heap, index, &element));
  return heap.UndefinedHint(base::StrCat(object.TypeName(), " object has no element ", element));
}

absl::StatusOr<Value> GetSlice(Heap& heap, const Value& object, const Value& start,
                               const Value& stop, const Value& step) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.is_string()) {
    heap.Scan(object.text().size());
    int64_t size = static_cast<int64_t>(CountCodePoints(object.text()));
    HEDDLE_ASSIGN_OR_RETURN(SliceRange range, ClipSlice(size, start, stop, step));
    return SliceText(heap, object, range);
  }
  if (!IsIndexable(object)) {
    return heap.UndefinedHint(base::StrCat(object.TypeName(), " object has no slices"));
  }
  const Sequence& sequence = object.sequence();
  HEDDLE_ASSIGN_OR_RETURN(SliceRange range, ClipSlice(sequence.size, start, stop, step));
  SequenceKind kind = object.sequence_kind();
  if (kind == SequenceKind::kGroup) kind = SequenceKind::kTuple;
  std::vector<Value> items;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    items.push_back(sequence.items[i]);
  }
  return heap.MakeSequence(kind, items);
}

absl::StatusOr<Value> GetOwnAttribute(Heap& heap, const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kDict:
      heap.Scan(object.dict().entries.size() * 16);
      if (const Value* found = object.dict().Find(name)) return *found;
      break;
    case Kind::kNamespace:
      if (const Value* found = object.name_space().attributes.Find(name)) return *found;
      break;
    case Kind::kLoop:
      return LoopAttribute(heap, object, name);
    case Kind::kUndefined:
      return UndefinedError(object);
    case Kind::kSequence:
      if (object.is_sequence(SequenceKind::kGroup)) {
        if (name == "grouper") return object.sequence().items[0];
        if (name == "list") return object.sequence().items[1];
      }
      break;
    case Kind::kCallable:
      if (name == "name" && object.callable().kind == Callable::Kind::kMacro) {
        return Value::String(object.callable().name);
      }
      break;
    default:
      break;
  }
  if (name.starts_with("__") && name.ends_with("__")) {
    return heap.UndefinedHint(base::StrCat("access to attribute '", name, "' of '",
                                           object.TypeName(), "' object is unsafe."));
  }
  return Value::UndefinedAttribute(object, name);
}

absl::StatusOr<Value> GetAttribute(Heap& heap, const Value& object, std::string_view name) {
  const Builtin* method = FindMethods(name).For(object);
  if (method == nullptr) return GetOwnAttribute(heap, object, name);
  if (method->function == nullptr) {
    return heap.UndefinedHint(base::StrCat("access to attribute '", name, "' of '",
                                           object.TypeName(), "' object is unsafe."));
  }
  Callable bound{
      .kind = Callable::Kind::kMethod, .name = method->name, .method = method, .self = object};
  return Value::Of(heap.New<Callable>(bound));
}

}  // namespace heddle::engine::text::jinja
