// Python's textwrap: a text in lines of at most some width, as Jinja2's wordwrap filter calls it.
// Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::engine::text::jinja {

struct WrapOptions {
  int64_t width = 79;  // code points, at least 1
  bool break_long_words = true;
  bool break_on_hyphens = true;
};

// The lines of one line of text, without white space at their ends, nor, except for the first, at
// their beginnings. Empty if there is nothing but white space. Linear in the text.
std::vector<std::string> WrapLine(std::string_view line, const WrapOptions& options);

}  // namespace heddle::engine::text::jinja
