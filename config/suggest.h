// The nearest known name to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace heddle::config {

// The candidate with the least distance, or "" if none is near enough to have been meant (more than
// a third of its letters differ, at least two).
std::string_view Nearest(std::string_view name, std::span<const std::string_view> candidates);

// "; did you mean --port?", with `prefix` before the name; "" if nothing is near.
std::string DidYouMean(std::string_view name, std::span<const std::string_view> candidates,
                       std::string_view prefix);

}  // namespace heddle::config
