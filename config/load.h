// Makes one Config from, in this order of strength: flags, the environment (HEDDLE_*), a YAML file,
// defaults. A value that any of them gives is checked even if a stronger one overrides it.
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
  bool help_requested = false;        // then nothing has been checked
  std::vector<std::string> warnings;  // likely mistakes: "HEDDLE_PROT is ..."
};

// `arguments`: what follows the command's name. `environment`: "NAME=value" each.
// INVALID_ARGUMENT with one line that names the option, its origin and what it should be; for an
// unknown name, the nearest known one. NOT_FOUND for a YAML file that cannot be read.
absl::StatusOr<Loaded> Load(Command command, std::span<const std::string> arguments,
                            std::span<const std::string> environment);

// What options say about each other; every message names both. Load calls it.
absl::Status Validate(Command command, const Config& config);

}  // namespace heddle::config
