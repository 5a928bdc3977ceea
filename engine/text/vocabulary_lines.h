// Walks over the lines of a vocabulary in a text file.
// Private to engine/text. Thread-safety: pure function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "base/status.h"

namespace heddle::engine::text {

// Calls visit(number, line) for each line that is not empty: numbers count from 1, and lines come
// without their ends, "\n" or "\r\n". Stops at the first status that is not OK, and returns it.
template <typename Visit>
absl::Status ForEachLine(std::string_view text, const Visit& visit) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) HEDDLE_RETURN_IF_ERROR(visit(number, line));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::text
