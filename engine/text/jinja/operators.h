// Python's operators on values: arithmetic, comparison, membership, subscripts, iteration.
// Errors are those of Python, in its words.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class UnaryOp : uint8_t { kNot, kNegate, kPlus };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

absl::StatusOr<Value> Arithmetic(Heap& heap, BinaryOp op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& a);

absl::StatusOr<bool> Equals(Heap& heap, const Value& a, const Value& b);
// -1, 0 or 1; `op` is the operator that messages show for types without an order.
absl::StatusOr<int> Order(Heap& heap, const Value& a, const Value& b, std::string_view op = "<");
absl::StatusOr<bool> Contains(Heap& heap, const Value& container, const Value& item);
absl::StatusOr<bool> Compare(Heap& heap, CompareOp op, const Value& a, const Value& b);

// The items that a for loop over `value` visits: items, keys, or characters. A generator is used
// up.
absl::StatusOr<std::span<const Value>> Iterate(Heap& heap, const Value& value);
bool IsIterable(const Value& value);
// len(value).
absl::StatusOr<int64_t> Length(Heap& heap, const Value& value);

// value[index]; undefined if there is none. It is an error only for undefined values.
absl::StatusOr<Value> GetItem(Heap& heap, const Value& object, const Value& index);
// value[start:stop:step]; bounds are none or integers.
absl::StatusOr<Value> GetSlice(Heap& heap, const Value& object, const Value& start,
                               const Value& stop, const Value& step);
// value.name; undefined if there is none. Methods come before keys, as in Python.
absl::StatusOr<Value> GetAttribute(Heap& heap, const Value& object, std::string_view name);
// The part of GetAttribute after methods: keys, loop and namespace attributes.
absl::StatusOr<Value> GetOwnAttribute(Heap& heap, const Value& object, std::string_view name);

// nullptr if the dictionary has no such key.
absl::StatusOr<const Value*> FindKey(Heap& heap, const Dict& dict, const Value& key);
// Inserts, or replaces the value of an equal key. Keys are texts, numbers, None or tuples.
absl::Status SetKey(Heap& heap, Dict* dict, const Value& key, const Value& value);

// "text" with &, <, >, ' and " as entities, marked as safe; markup stays as it is.
Value Escape(Heap& heap, const Value& text);

}  // namespace heddle::engine::text::jinja
