// The filters of sequences and dictionaries. Where Jinja2 returns a generator, so do these: it can
// be iterated once, has no length and is not JSON. Its items, however, are computed at once.
#include <algorithm>
#include <optional>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Value Generator(Heap& heap, std::span<const Value> items) {
  return heap.MakeSequence(SequenceKind::kGenerator, items);
}

absl::Status TickFor(Heap& heap) {
  heap.Tick();
  return heap.Check();
}

Result Default(Heap&, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "default", 0, {"default_value", "boolean"}));
  if (!self.is_undefined() && !(bound[1].Truthy() && !self.Truthy())) return self;
  return bound[0].is_missing() ? Value::String("") : bound[0];
}

Result LengthFilter(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(int64_t length, Length(heap, self));
  return Value::Int(length);
}

Result ListFilter(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  return heap.List(items);
}

Result First(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  if (!items.empty()) return items.front();
  return Value::UndefinedHint("No first item, sequence was empty.");
}

Result Last(Heap& heap, const Value& self, const Args&) {
  if (self.is_sequence(SequenceKind::kGenerator)) {
    return TemplateError("'generator' object is not reversible");
  }
  if (!self.is_undefined() && !IsIterable(self)) {
    return TemplateError(base::StrCat("'", self.TypeName(), "' object is not reversible"));
  }
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  if (!items.empty()) return items.back();
  return Value::UndefinedHint("No last item, sequence was empty.");
}

Result Join(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "join", 0, {"d", "attribute"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  std::string_view separator;
  if (!bound[0].is_missing()) {
    HEDDLE_ASSIGN_OR_RETURN(separator, ToText(heap, bound[0]));
  }
  if (bound[1].is_missing() || bound[1].is_none()) {
    return JoinTexts(heap, separator, items, /*convert=*/true);
  }
  std::vector<Value> attributes;
  for (const Value& item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    HEDDLE_ASSIGN_OR_RETURN(Value attribute, GetPath(heap, item, bound[1]));
    attributes.push_back(attribute);
  }
  return JoinTexts(heap, separator, attributes, /*convert=*/true);
}

Result Items(Heap& heap, const Value& self, const Args&) {
  if (self.is_undefined()) return Generator(heap, {});
  if (!self.is_dict()) return TemplateError("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const Entry& entry : self.dict().entries) {
    items.push_back(heap.Tuple({{entry.key, entry.value}}));
  }
  return Generator(heap, items);
}

Result Reverse(Heap& heap, const Value& self, const Args&) {
  if (self.is_string()) {
    std::string reversed;
    reversed.reserve(self.text().size());
    std::vector<std::string_view> characters;
    for (size_t pos = 0; pos < self.text().size();) {
      size_t begin = pos;
      NextCodePoint(self.text(), &pos);
      characters.push_back(self.text().substr(begin, pos - begin));
    }
    for (auto it = characters.rbegin(); it != characters.rend(); ++it) reversed.append(*it);
    return heap.String(reversed, self.is_markup());
  }
  if (!IsIterable(self)) return TemplateError("argument must be iterable");
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  std::vector<Value> reversed(items.rbegin(), items.rend());
  return Generator(heap, reversed);
}

// The sort key of a value: its attribute, in lower case unless case matters.
struct KeyOptions {
  Value attribute;  // missing or None: the value itself; "a,b": several
  bool case_sensitive = false;
};

Value FoldCase(Heap& heap, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return heap.String(ToLower(value.text()));
}

Result KeyOf(Heap& heap, const Value& item, const KeyOptions& options) {
  HEDDLE_RETURN_IF_ERROR(TickFor(heap));
  const Value& attribute = options.attribute;
  if (attribute.is_missing() || attribute.is_none()) {
    return FoldCase(heap, item, options.case_sensitive);
  }
  if (!attribute.is_string() || attribute.text().find(',') == std::string_view::npos) {
    HEDDLE_ASSIGN_OR_RETURN(Value value, GetPath(heap, item, attribute));
    return FoldCase(heap, value, options.case_sensitive);
  }
  std::vector<Value> parts;
  for (std::string_view rest = attribute.text();;) {
    size_t comma = rest.find(',');
    HEDDLE_ASSIGN_OR_RETURN(Value value, GetPath(heap, item, Value::String(rest.substr(0, comma))));
    parts.push_back(FoldCase(heap, value, options.case_sensitive));
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  return heap.Tuple(parts);
}

struct Keyed {
  Value key;
  Value item;
};

absl::StatusOr<std::vector<Keyed>> WithKeys(Heap& heap, std::span<const Value> items,
                                            const KeyOptions& options) {
  std::vector<Keyed> keyed;
  keyed.reserve(items.size());
  for (const Value& item : items) {
    HEDDLE_ASSIGN_OR_RETURN(Value key, KeyOf(heap, item, options));
    keyed.push_back({key, item});
  }
  return keyed;
}

// Stable merge sort, because a comparison can fail, which std::stable_sort cannot stop at.
absl::Status SortKeyed(Heap& heap, bool reverse, std::vector<Keyed>* keyed) {
  std::vector<Keyed> merged(keyed->size());
  for (size_t width = 1; width < keyed->size(); width *= 2) {
    for (size_t begin = 0; begin < keyed->size(); begin += 2 * width) {
      size_t middle = std::min(begin + width, keyed->size());
      size_t end = std::min(begin + 2 * width, keyed->size());
      size_t left = begin;
      size_t right = middle;
      for (size_t i = begin; i < end; ++i) {
        bool take_right = left == middle;
        if (!take_right && right < end) {
          HEDDLE_ASSIGN_OR_RETURN(int order, Order(heap, (*keyed)[right].key, (*keyed)[left].key));
          take_right = reverse ? order > 0 : order < 0;
        }
        merged[i] = take_right ? (*keyed)[right++] : (*keyed)[left++];
      }
    }
    std::swap(merged, *keyed);
  }
  return absl::OkStatus();
}

Value ItemsOf(Heap& heap, const std::vector<Keyed>& keyed) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (const Keyed& entry : keyed) items.push_back(entry.item);
  return heap.List(items);
}

Result Sort(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound,
                          Bind(args, "sort", 0, {"reverse", "case_sensitive", "attribute"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  HEDDLE_ASSIGN_OR_RETURN(auto keyed, WithKeys(heap, items, {bound[2], bound[1].Truthy()}));
  HEDDLE_RETURN_IF_ERROR(SortKeyed(heap, bound[0].Truthy(), &keyed));
  return ItemsOf(heap, keyed);
}

Result DictSort(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound,
                          Bind(args, "dictsort", 0, {"case_sensitive", "by", "reverse"}));
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_dict()) {
    return TemplateError(base::StrCat("'", self.TypeName(), "' object has no attribute 'items'"));
  }
  std::string_view by = "key";
  if (!bound[1].is_missing()) {
    HEDDLE_ASSIGN_OR_RETURN(by, TextArgument(bound[1], "by"));
  }
  if (by != "key" && by != "value") {
    return TemplateError("You can only sort by either \"key\" or \"value\"");
  }
  std::vector<Keyed> keyed;
  for (const Entry& entry : self.dict().entries) {
    const Value& key = by == "key" ? entry.key : entry.value;
    keyed.push_back(
        {FoldCase(heap, key, bound[0].Truthy()), heap.Tuple({{entry.key, entry.value}})});
  }
  HEDDLE_RETURN_IF_ERROR(SortKeyed(heap, bound[2].Truthy(), &keyed));
  return ItemsOf(heap, keyed);
}

template <int direction>
Result Extreme(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(
      auto bound, Bind(args, direction < 0 ? "min" : "max", 0, {"case_sensitive", "attribute"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  if (items.empty()) return Value::UndefinedHint("No aggregated item, sequence was empty.");
  HEDDLE_ASSIGN_OR_RETURN(auto keyed, WithKeys(heap, items, {bound[1], bound[0].Truthy()}));
  size_t best = 0;
  for (size_t i = 1; i < keyed.size(); ++i) {
    HEDDLE_ASSIGN_OR_RETURN(int order,
                            Order(heap, keyed[i].key, keyed[best].key, direction > 0 ? ">" : "<"));
    if (order * direction > 0) best = i;
  }
  return keyed[best].item;
}

Result Unique(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "unique", 0, {"case_sensitive", "attribute"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  HEDDLE_ASSIGN_OR_RETURN(auto keyed, WithKeys(heap, items, {bound[1], bound[0].Truthy()}));
  Dict* seen = heap.NewDict(0);
  std::vector<Value> kept;
  for (const Keyed& entry : keyed) {
    HEDDLE_ASSIGN_OR_RETURN(const Value* found, FindKey(heap, *seen, entry.key));
    if (found != nullptr) continue;
    HEDDLE_RETURN_IF_ERROR(SetKey(heap, seen, entry.key, Value::None()));
    kept.push_back(entry.item);
  }
  return Generator(heap, kept);
}

Result GroupBy(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound,
                          Bind(args, "groupby", 1, {"attribute", "default", "case_sensitive"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    HEDDLE_ASSIGN_OR_RETURN(Value key, GetPath(heap, item, bound[0]));
    if (key.is_undefined() && !bound[1].is_missing()) key = bound[1];
    keyed.push_back({FoldCase(heap, key, bound[2].Truthy()), item});
  }
  HEDDLE_RETURN_IF_ERROR(SortKeyed(heap, /*reverse=*/false, &keyed));
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < keyed.size(); ++end) {
      HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, keyed[begin].key, keyed[end].key));
      if (!same) break;
      members.push_back(keyed[end].item);
    }
    // The group's name is the first member's own attribute, before its case was folded.
    HEDDLE_ASSIGN_OR_RETURN(Value name, GetPath(heap, keyed[begin].item, bound[0]));
    if (name.is_undefined() && !bound[1].is_missing()) name = bound[1];
    groups.push_back(heap.MakeSequence(SequenceKind::kGroup, {{name, heap.List(members)}}));
    begin = end;
  }
  return heap.List(groups);
}

Result Sum(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "sum", 0, {"attribute", "start"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  Value total = bound[1].is_missing() ? Value::Int(0) : bound[1];
  if (total.is_string()) return TemplateError("sum() can't sum strings [use ''.join(seq) instead]");
  for (Value item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    if (!bound[0].is_missing() && !bound[0].is_none()) {
      HEDDLE_ASSIGN_OR_RETURN(item, GetPath(heap, item, bound[0]));
    }
    HEDDLE_ASSIGN_OR_RETURN(total, Arithmetic(heap, BinaryOp::kAdd, total, item));
  }
  return total;
}

Args Rest(const Args& args, size_t skip) {
  Args rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(skip),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

Result MapAttribute(Heap& heap, std::span<const Value> items, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "map", 0, {"attribute", "default"}));
  std::vector<Value> out;
  for (const Value& item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    HEDDLE_ASSIGN_OR_RETURN(Value value, GetPath(heap, item, bound[0]));
    bool defaulted = value.is_undefined() && !bound[1].is_missing() && !bound[1].is_none();
    out.push_back(defaulted ? bound[1] : value);
  }
  return Generator(heap, out);
}

// Jinja2 looks at nothing else if the value is false: of none, false and 0 too it gives no items.
Result Map(Heap& heap, const Value& self, const Args& args) {
  if (!self.Truthy()) return Generator(heap, {});
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  bool by_attribute = args.positional.empty() && !args.named.empty();
  if (by_attribute) return MapAttribute(heap, items, args);
  if (args.positional.empty()) return TemplateError("map requires a filter argument");
  HEDDLE_ASSIGN_OR_RETURN(std::string_view name, TextArgument(args.positional[0], "filter name"));
  const Builtin* filter = FindFilter(name);
  if (filter == nullptr) return TemplateError(base::StrCat("No filter named '", name, "'."));
  Args rest = Rest(args, 1);
  std::vector<Value> out;
  for (const Value& item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    HEDDLE_ASSIGN_OR_RETURN(Value value, filter->function(heap, item, rest));
    out.push_back(value);
  }
  return Generator(heap, out);
}

// Keeps the items whose value, or attribute, passes the named test (or is true without one).
template <bool keep, bool by_attribute>
Result Choose(Heap& heap, const Value& self, const Args& args) {
  if (!self.Truthy()) return Generator(heap, {});  // as Map
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  size_t taken = by_attribute ? 1 : 0;
  if (args.positional.size() < taken) {
    return TemplateError("Missing parameter for attribute name");
  }
  const Builtin* test = nullptr;
  if (args.positional.size() > taken) {
    HEDDLE_ASSIGN_OR_RETURN(std::string_view name,
                            TextArgument(args.positional[taken], "test name"));
    test = FindTest(name);
    if (test == nullptr) return TemplateError(base::StrCat("No test named '", name, "'."));
    ++taken;
  }
  Args rest = Rest(args, taken);
  std::vector<Value> kept;
  for (const Value& item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    Value value = item;
    if (by_attribute) {
      HEDDLE_ASSIGN_OR_RETURN(value, GetPath(heap, item, args.positional[0]));
    }
    if (test != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(value, test->function(heap, value, rest));
    }
    if (value.Truthy() == keep) kept.push_back(item);
  }
  return Generator(heap, kept);
}

Result Batch(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "batch", 1, {"linecount", "fill_with"}));
  HEDDLE_ASSIGN_OR_RETURN(int64_t size, IntegerOr(bound[0], "linecount", 1));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  bool fills = !bound[1].is_missing() && !bound[1].is_none() && !items.empty();
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& item : items) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    if (static_cast<int64_t>(batch.size()) == size) {
      batches.push_back(heap.List(batch));
      batch.clear();
    }
    batch.push_back(item);
  }
  if (fills && static_cast<int64_t>(batch.size()) < size) {
    HEDDLE_RETURN_IF_ERROR(
        heap.Reserve(static_cast<uint64_t>(std::min<int64_t>(size, INT32_MAX)) * sizeof(Value)));
    batch.resize(static_cast<size_t>(size), bound[1]);
  }
  if (!batch.empty()) batches.push_back(heap.List(batch));
  return Generator(heap, batches);
}

Result Slice(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "slice", 1, {"slices", "fill_with"}));
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  const Value num_items = Value::Int(static_cast<int64_t>(items.size()));
  HEDDLE_RETURN_IF_ERROR(Arithmetic(heap, BinaryOp::kFloorDiv, num_items, bound[0]).status());
  HEDDLE_ASSIGN_OR_RETURN(int64_t slices, IntegerOr(bound[0], "slices", 1));
  if (slices < 1) return Generator(heap, {});
  size_t count = static_cast<size_t>(slices);
  size_t each = items.size() / count;
  size_t with_extra = items.size() % count;
  bool fills = !bound[1].is_missing() && !bound[1].is_none();
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    HEDDLE_RETURN_IF_ERROR(TickFor(heap));
    size_t size = each + (i < with_extra ? 1 : 0);
    std::vector<Value> slice(items.begin() + static_cast<ptrdiff_t>(begin),
                             items.begin() + static_cast<ptrdiff_t>(begin + size));
    if (fills && i >= with_extra) slice.push_back(bound[1]);
    out.push_back(heap.List(slice));
    begin += size;
  }
  return Generator(heap, out);
}

Result Attribute(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "attr", 1, {"name"}));
  if (self.is_undefined()) return UndefinedError(self);
  if (!bound[0].is_string()) {
    return TemplateError(
        base::StrCat("attribute name must be string, not '", bound[0].TypeName(), "'"));
  }
  const std::string_view name = bound[0].text();
  // Unlike a dot, this never looks at a dictionary's keys.
  if (self.is_dict() && FindMethods(name).of_dict == nullptr) {
    return Value::UndefinedAttribute(self, name);
  }
  return GetAttribute(heap, self, name);
}

constexpr Builtin kFilters[] = {
    {"attr", Attribute},
    {"batch", Batch},
    {"count", LengthFilter},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"first", First},
    {"groupby", GroupBy},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"map", Map},
    {"max", Extreme<1>},
    {"min", Extreme<-1>},
    {"reject", Choose<false, false>},
    {"rejectattr", Choose<false, true>},
    {"reverse", Reverse},
    {"select", Choose<true, false>},
    {"selectattr", Choose<true, true>},
    {"slice", Slice},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

std::span<const Builtin> SequenceFilters() { return kFilters; }

}  // namespace heddle::engine::text::jinja
