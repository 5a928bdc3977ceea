// Python's two ways to format: `"%s: %5.2f" % (a, b)` and `"{}: {:>8}".format(a, b)`.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/template/callable.h"
#include "engine/text/template/heap.h"
#include "engine/text/template/value.h"

namespace heddle::engine::text::jinja {

// `arguments`: a tuple of values, a dictionary for %(name)s, or the single value.
absl::StatusOr<Value> FormatPercent(Heap& heap, const Value& pattern, const Value& arguments);

// str.format with attribute and item access in fields, conversions, and format specifications
// for texts, integers and floats.
absl::StatusOr<Value> FormatBraces(Heap& heap, const Value& pattern, const Args& args);

}  // namespace heddle::engine::text::jinja
