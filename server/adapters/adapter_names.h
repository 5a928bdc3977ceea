// Names of adapters as clients and operators write them.
// Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

inline constexpr size_t kMaxAdapterName = 200;  // bytes: a folder's name has 255 at most

// Whether a name may be given to an adapter: printable ASCII without white space, quotes,
// backslash, comma (which separates names in metrics) and equals sign.
bool IsAdapterName(std::string_view name);

// Whether it may also name something in a folder: no slash, and no dot at the beginning.
bool IsFolderAdapterName(std::string_view name);

struct NamedAdapterPath {
  std::string name;
  std::string path;
};

// Parses NAME=PATH entries of --lora. INVALID_ARGUMENT: an entry has another form, a name is not
// allowed or stands twice.
absl::StatusOr<std::vector<NamedAdapterPath>> ParseAdapterOptions(
    std::span<const std::string> entries);

}  // namespace heddle::server
