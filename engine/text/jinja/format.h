// Python's two ways of formatting: `"%s: %5.2f" % (a, b)` and `"{}: {:>8}".format(a, b)`.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/callable.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

// `arguments` is a tuple of values, a dictionary for %(name)s, or the single value.
absl::StatusOr<Value> FormatPercent(Heap& heap, const Value& pattern, const Value& arguments);

// str.format with attribute and item access in fields, conversions, and format specifications
// for texts, integers and floats.
absl::StatusOr<Value> FormatBraces(Heap& heap, const Value& pattern, const Args& args);

}  // namespace heddle::engine::text::jinja
