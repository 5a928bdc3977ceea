// The fields of Python's two formatting languages: parses specifications such as "%-8.3f" and
// "{:>8}", and writes a value in such a field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

inline constexpr int64_t kMaxWidth = 1 << 20;  // wider fields are attacks, not layouts

// [[fill]align][sign][#][0][width][grouping][.precision][type], of both formatting languages.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0 for the type's own
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Digits at `*pos`; `otherwise` if there are none. An error above kMaxWidth.
absl::StatusOr<int64_t> ParseCount(std::string_view text, size_t* pos, int64_t otherwise);

void FormatText(const Spec& spec, std::string_view text, char default_align, std::string* out);
void FormatInteger(const Spec& spec, const Value& value, std::string* out);  // any integer or bool
void FormatReal(const Spec& spec, double value, std::string* out);

// format(value, spec_text).
absl::Status FormatValue(Heap& heap, const Value& value, std::string_view spec_text,
                         std::string* out);

}  // namespace heddle::engine::text::jinja
