// The memory that this process may take: the smaller of the machine's free memory and what its
// control group allows.
#pragma once

#include <cstdint>
#include <filesystem>

namespace heddle::engine {

struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};

// Reads <root>/proc/meminfo and the control group (base/control_group.h). What cannot be read
// counts as no limit. Tests set `root`.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

// This process's resident bytes (/proc/self/statm); 0 where that cannot be read.
int64_t ResidentBytes();

}  // namespace heddle::engine
