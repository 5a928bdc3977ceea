// Reads the JSON part of a safetensors file as a stream of events: a header of 100 MB never becomes
// a tree in memory, and duplicate names are noticed. Used by safetensors.cc only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::engine {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;  // begin and end, in bytes after the header
  bool has_shape = false;
};

// Entries in the order of the header, each with a dtype, a shape and two offsets, none negative;
// without "__metadata__". No two have the same name.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                                     std::string_view file_name);

}  // namespace heddle::engine
