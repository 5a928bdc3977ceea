// How much memory this process may take: the smaller of what the machine has free and what its
// control group allows.
#pragma once

#include <cstdint>
#include <filesystem>

namespace heddle::engine {

struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};

// Reads <root>/proc/meminfo and the memory controller of cgroup v2 (memory.max, memory.current) or
// v1 below <root>/sys/fs/cgroup. What cannot be read counts as no limit. `root` is for tests.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

// What of this process is in memory now (/proc/self/statm); 0 where that cannot be read.
int64_t ResidentBytes();

}  // namespace heddle::engine
