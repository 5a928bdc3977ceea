// The methods of lists, tuples and dictionaries. Modifying methods are listed without a function:
// the sandbox refuses them, as transformers' does.
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"

namespace heddle::engine::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

absl::Status NoArguments(const Args& args, std::string_view name) {
  if (args.positional.empty() && args.named.empty()) return absl::OkStatus();
  return TemplateError(base::StrCat(name, "() takes no arguments"));
}

Result CountItem(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "count", 1, {"value"}));
  int64_t count = 0;
  const Sequence& sequence = self.sequence();
  for (uint32_t i = 0; i < sequence.size; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, sequence.items[i], bound[0]));
    count += same ? 1 : 0;
  }
  return Value::Int(count);
}

Result IndexOfItem(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "index", 1, {"value"}));
  const Sequence& sequence = self.sequence();
  for (uint32_t i = 0; i < sequence.size; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(bool same, Equals(heap, sequence.items[i], bound[0]));
    if (same) return Value::Int(i);
  }
  std::string text;
  HEDDLE_RETURN_IF_ERROR(AppendRepr(heap, bound[0], &text));
  return TemplateError(base::StrCat(text, " is not in ", self.TypeName()));
}

Result CopyList(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoArguments(args, "copy"));
  return heap.List({self.sequence().items, self.sequence().size});
}

Result Keys(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoArguments(args, "keys"));
  std::vector<Value> keys;
  for (const Entry& entry : self.dict().entries) keys.push_back(entry.key);
  return heap.MakeSequence(SequenceKind::kKeys, keys);
}

Result Values(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoArguments(args, "values"));
  std::vector<Value> values;
  for (const Entry& entry : self.dict().entries) values.push_back(entry.value);
  return heap.MakeSequence(SequenceKind::kValues, values);
}

Result DictItems(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoArguments(args, "items"));
  std::vector<Value> items;
  for (const Entry& entry : self.dict().entries) {
    items.push_back(heap.Tuple({{entry.key, entry.value}}));
  }
  return heap.MakeSequence(SequenceKind::kItems, items);
}

Result Get(Heap& heap, const Value& self, const Args& args) {
  if (!args.named.empty()) return TemplateError("dict.get() takes no keyword arguments");
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "get", 1, {"key", "default"}));
  HEDDLE_ASSIGN_OR_RETURN(const Value* found, FindKey(heap, self.dict(), bound[0]));
  if (found != nullptr) return *found;
  return bound[1].is_missing() ? Value::None() : bound[1];
}

Result CopyDict(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoArguments(args, "copy"));
  Dict* copy = heap.NewDict(self.dict().entries.size());
  copy->entries = self.dict().entries;
  return Value::Of(copy);
}

constexpr Builtin kTupleMethods[] = {{"count", CountItem}, {"index", IndexOfItem}};

constexpr Builtin kListMethods[] = {
    {"count", CountItem}, {"index", IndexOfItem}, {"copy", CopyList},  {"append", nullptr},
    {"clear", nullptr},   {"extend", nullptr},    {"insert", nullptr}, {"pop", nullptr},
    {"remove", nullptr},  {"reverse", nullptr},   {"sort", nullptr}};

constexpr Builtin kDictMethods[] = {
    {"get", Get},        {"items", DictItems},   {"keys", Keys},   {"values", Values},
    {"copy", CopyDict},  {"clear", nullptr},     {"pop", nullptr}, {"popitem", nullptr},
    {"update", nullptr}, {"setdefault", nullptr}};

}  // namespace

std::span<const Builtin> ListMethods() { return kListMethods; }
std::span<const Builtin> TupleMethods() { return kTupleMethods; }
std::span<const Builtin> DictMethods() { return kDictMethods; }

}  // namespace heddle::engine::text::jinja
