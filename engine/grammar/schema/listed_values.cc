#include "engine/grammar/schema/listed_values.h"

#include <algorithm>
#include <string>

#include "absl/hash/hash.h"

namespace heddle::engine::grammar {

bool AreEqual(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (auto it = a.begin(); it != a.end(); ++it) {
      const auto other = b.find(it.key());
      if (other == b.end() || !AreEqual(*it, *other)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), AreEqual);
  }
  return a == b;
}

uint64_t HashOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return absl::HashOf(1, value.get_ref<const std::string&>());
    case Json::value_t::boolean:
      return absl::HashOf(2, value.get<bool>());
    case Json::value_t::null:
      return absl::HashOf(3);
    case Json::value_t::object: {
      uint64_t members = 0;  // a sum, which knows no order
      for (auto it = value.begin(); it != value.end(); ++it) {
        members += absl::HashOf(it.key(), HashOf(*it));
      }
      return absl::HashOf(4, members);
    }
    case Json::value_t::array: {
      uint64_t items = value.size();
      for (const Json& item : value) items = absl::HashOf(items, HashOf(item));
      return absl::HashOf(5, items);
    }
    default:
      return absl::HashOf(6, value.get<double>());
  }
}

}  // namespace heddle::engine::grammar
