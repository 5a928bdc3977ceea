// Reads the YAML file of options into plain texts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::config {

struct YamlSetting {
  std::string key;
  std::vector<std::string> values;  // one, or a list's
  int line;                         // from 1
};

// Reads a mapping of names to scalars or lists of scalars; at most 1 MiB. NOT_FOUND if `path`
// cannot be read; INVALID_ARGUMENT, with file and line, for any other content.
absl::StatusOr<std::vector<YamlSetting>> ReadYamlFile(const std::string& path);

}  // namespace heddle::config
