// String functions that none of the project's libraries has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::base {

// `text` with every `from` replaced by `to`, left to right. REQUIRES: `from` is not empty.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

// The number of insertions, deletions, replacements and swaps of neighbours that turn one name into
// the other. It takes quadratic time, so untrusted names must be cut first.
// Source: Damerau and Levenshtein's distance, each place edited once ("optimal string alignment").
size_t EditDistance(std::string_view a, std::string_view b);

// Text like "1.5 GiB", for reading, with one digit after the point.
std::string ShowBytes(int64_t bytes);

// Text like "8 MiB" or "1000000 bytes": exact, in the largest unit that divides it.
std::string ExactBytes(uint64_t bytes);

}  // namespace heddle::base
