// The tables behind FindFilter, FindTest and FindMethods, and what their functions share.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/template/callable.h"
#include "engine/text/template/heap.h"

namespace heddle::engine::text::jinja {

std::span<const Builtin> TextFilters();      // filters_text.cc
std::span<const Builtin> NumberFilters();    // filters_text.cc
std::span<const Builtin> SequenceFilters();  // filters_sequence.cc
std::span<const Builtin> Tests();            // builtin_tests.cc
std::span<const Builtin> TextMethods();      // methods_text.cc
std::span<const Builtin> ListMethods();      // methods_container.cc
std::span<const Builtin> TupleMethods();
std::span<const Builtin> DictMethods();

// str(value), as a view where the value is a text already.
absl::StatusOr<std::string_view> ToText(Heap& heap, const Value& value);
// An optional argument: `otherwise` where it is missing or None.
absl::StatusOr<int64_t> IntegerOr(const Value& value, std::string_view what, int64_t otherwise);
// A text argument, TypeError if it is anything else.
absl::StatusOr<std::string_view> TextArgument(const Value& value, std::string_view what);

// text.replace(old, replacement, count); count < 0: all.
absl::StatusOr<Value> ReplaceText(Heap& heap, const Value& text, std::string_view from,
                                  std::string_view to, int64_t count);
// separator.join(items), after str() of each if `convert`; otherwise each must be a text.
absl::StatusOr<Value> JoinTexts(Heap& heap, std::string_view separator,
                                std::span<const Value> items, bool convert);
// Splits at \n, \r\n and the other line ends of Python's splitlines.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);
// int(text, base), nothing if it is no integer of 64 bits.
std::optional<int64_t> ParseInteger(std::string_view text, int base);
std::optional<double> ParseReal(std::string_view text);
// The path of an attribute filter: "a.b.0" looked up step by step.
absl::StatusOr<Value> GetPath(Heap& heap, Value object, const Value& path);

}  // namespace heddle::engine::text::jinja
