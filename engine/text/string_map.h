// Hash map from strings, searched by std::string_view without a copy. (Abseil's own heterogeneous
// look-up takes absl::string_view, which Debian builds as a type of its own.)
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"

namespace heddle::engine::text {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return absl::Hash<std::string_view>()(text); }
};

template <typename Value>
using StringMap = absl::flat_hash_map<std::string, Value, StringHash, std::equal_to<>>;

}  // namespace heddle::engine::text
