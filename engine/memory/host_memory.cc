#include "engine/memory/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace heddle::engine {
namespace {

// A file that holds one number ("max" and absent files are no number).
std::optional<int64_t> ReadNumber(const std::filesystem::path& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (in >> value && value >= 0) return value;
  return std::nullopt;
}

int64_t MeminfoBytes(const std::filesystem::path& root, const std::string& key) {
  std::ifstream in(root / "proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string unit;
  while (in >> name >> kib) {
    std::getline(in, unit);
    if (name == key + ":") return kib * 1024;
  }
  return 0;
}

}  // namespace

HostMemory ReadHostMemory(const std::filesystem::path& root) {
  HostMemory memory{MeminfoBytes(root, "MemTotal"), MeminfoBytes(root, "MemAvailable")};
  const std::filesystem::path cgroup = root / "sys/fs/cgroup";
  std::optional<int64_t> limit = ReadNumber(cgroup / "memory.max");
  std::optional<int64_t> used = ReadNumber(cgroup / "memory.current");
  if (!limit) {
    limit = ReadNumber(cgroup / "memory/memory.limit_in_bytes");
    used = ReadNumber(cgroup / "memory/memory.usage_in_bytes");
  }
  if (limit && *limit < std::numeric_limits<int64_t>::max() / 2) {
    memory.total_bytes = std::min(memory.total_bytes, *limit);
    memory.available_bytes =
        std::min(memory.available_bytes, std::max<int64_t>(0, *limit - used.value_or(0)));
  }
  return memory;
}

int64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  if (!(in >> total_pages >> resident_pages)) return 0;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace heddle::engine
