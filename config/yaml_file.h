// The YAML file of options, read into plain texts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::config {

struct YamlSetting {
  std::string key;
  std::vector<std::string> values;  // one, or those of a list
  int line;                         // from 1
};

// A mapping of names to scalars or lists of scalars; at most 1 MiB. NOT_FOUND if `path` cannot be
// read; INVALID_ARGUMENT, with file and line, for anything else in it.
absl::StatusOr<std::vector<YamlSetting>> ReadYamlFile(const std::string& path);

}  // namespace heddle::config
