// Makes one Config from flags, the environment (HEDDLE_*), a YAML file and defaults, in this order
// of precedence. Every given value is checked, even if it is overridden.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/option.h"

namespace heddle::config {

struct Loaded {
  Config config;
  bool help_requested = false;        // nothing was checked then
  std::vector<std::string> warnings;  // likely mistakes: "HEDDLE_PROT is ..."
};

// `arguments`: those behind the command's name. `environment`: "NAME=value" each. INVALID_ARGUMENT
// with one line that names the option, its origin and what it should be; for an unknown name, the
// nearest known one. NOT_FOUND for a YAML file that cannot be read.
absl::StatusOr<Loaded> Load(Command command, std::span<const std::string> arguments,
                            std::span<const std::string> environment);

// Checks options against each other; every message names both. Load calls it.
absl::Status Validate(Command command, const Config& config);

}  // namespace heddle::config
