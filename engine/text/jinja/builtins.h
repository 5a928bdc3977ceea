// The tables that FindFilter, FindTest and FindMethods search, and helpers of their functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/callable.h"
#include "engine/text/jinja/heap.h"

namespace heddle::engine::text::jinja {

std::span<const Builtin> TextFilters();      // filters_text.cc
std::span<const Builtin> NumberFilters();    // filters_text.cc
std::span<const Builtin> MarkupFilters();    // filters_markup.cc
std::span<const Builtin> SequenceFilters();  // filters_sequence.cc
std::span<const Builtin> Tests();            // builtin_tests.cc
std::span<const Builtin> TextMethods();      // methods_text.cc
std::span<const Builtin> ListMethods();      // methods_container.cc
std::span<const Builtin> TupleMethods();
std::span<const Builtin> DictMethods();

// str(value), as a view if the value already is a text.
absl::StatusOr<std::string_view> ToText(Heap& heap, const Value& value);
// An optional argument: `otherwise` if it is missing or None.
absl::StatusOr<int64_t> IntegerOr(const Value& value, std::string_view what, int64_t otherwise);
// A text argument; a TypeError if it is anything else.
absl::StatusOr<std::string_view> TextArgument(const Value& value, std::string_view what);

// text.replace(old, replacement, count); count < 0: all.
absl::StatusOr<Value> ReplaceText(Heap& heap, const Value& text, std::string_view from,
                                  std::string_view to, int64_t count);
// separator.join(items); with `convert` str() is applied to each, otherwise each must be a text.
absl::StatusOr<Value> JoinTexts(Heap& heap, std::string_view separator,
                                std::span<const Value> items, bool convert);
// Splits at \n, \r\n and the other line ends of Python's splitlines.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);
// int(text, base); empty if it is no integer of 64 bits.
std::optional<int64_t> ParseInteger(std::string_view text, int base);
std::optional<double> ParseReal(std::string_view text);
// float(value), of a number or a text; an error in Python's words.
absl::StatusOr<double> PythonFloat(Heap& heap, const Value& value);
// The path of an attribute filter: "a.b.0" looked up step by step.
absl::StatusOr<Value> GetPath(Heap& heap, Value object, const Value& path);

}  // namespace heddle::engine::text::jinja
