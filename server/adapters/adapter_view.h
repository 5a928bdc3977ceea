// The adapters that one client may use.
// Thread-safety: that of the registry.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/adapters/adapter_registry.h"

namespace heddle::server {

struct AdapterView {
  AdapterRegistry* registry = nullptr;                      // nullptr: there are none
  std::shared_ptr<const std::vector<std::string>> allowed;  // nullptr: all

  bool Allows(std::string_view name) const {
    return registry != nullptr && (allowed == nullptr || std::find(allowed->begin(), allowed->end(),
                                                                   name) != allowed->end());
  }
};

}  // namespace heddle::server
