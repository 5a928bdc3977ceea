// Pages of lists, as GET /v1/files and /v1/batches give them.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

struct ListEntry {
  std::string id;
  std::string json;
};

struct ListPage {
  size_t limit = 20;
  bool newest_first = true;
  std::string after;  // id of the last entry of the page before; empty: from the beginning
};

// A page of `entries`, the oldest of which comes first. INVALID_ARGUMENT: `after` is none of them.
absl::StatusOr<std::string> ListJson(std::vector<ListEntry> entries, const ListPage& page);

}  // namespace heddle::server
