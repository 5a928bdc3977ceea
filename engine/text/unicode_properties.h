// The code points that have a Unicode property, by the property's name. The data is PCRE2's.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace heddle::engine::text {

// Ranges, both ends included, in ascending order; surrogates are left out. Names are those that
// PCRE2 takes within \p{...}: binary properties ("Emoji", "ID_Start"), "sc:Greek" for a script and
// "scx:Greek" for its extensions. Empty if there is no such property. Takes some milliseconds.
// Thread-safe.
std::vector<std::pair<char32_t, char32_t>> RangesOfProperty(std::string_view name);

}  // namespace heddle::engine::text
