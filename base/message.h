// Text of error messages: StrCat that takes std::string_view (Debian's absl::string_view is a type
// of its own), and quoting of untrusted text.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace heddle::base {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

namespace message_internal {
template <typename T>
decltype(auto) AsAlphaNum(const T& part) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return AbslView(part);
  } else {
    return (part);
  }
}
}  // namespace message_internal

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return absl::StrCat(message_internal::AsAlphaNum(parts)...);
}

// Quotes text from a file or a request in a message: in double quotes, control characters escaped,
// cut to a length that suits a log line.
inline std::string Quote(std::string_view text) {
  constexpr size_t kMaxShown = 96;  // longer than tensor names and keys of published models
  std::string shown = absl::Utf8SafeCHexEscape(AbslView(text.substr(0, kMaxShown)));
  return StrCat("\"", shown, text.size() > kMaxShown ? "...\"" : "\"");
}

}  // namespace heddle::base
