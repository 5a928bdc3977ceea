// Conversion of values to text: Python's str(), repr() and json.dumps().
// All appenders bound the nesting that they follow and count their work on the heap.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

// The deepest nesting of lists and dictionaries that is printed, compared or converted.
inline constexpr int kMaxValueNesting = 128;

// The shortest digits that read back as the same double, in repr()'s notation: 1.0, 1e-05, inf.
std::string FormatFloat(double value);

absl::Status AppendStr(Heap& heap, const Value& value, std::string* out);
absl::Status AppendRepr(Heap& heap, const Value& value, std::string* out);
void AppendReprOfText(std::string_view text, bool ascii_only, std::string* out);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // per level; none: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

absl::Status AppendJson(Heap& heap, const Value& value, const JsonStyle& style, std::string* out);

}  // namespace heddle::engine::text::jinja
