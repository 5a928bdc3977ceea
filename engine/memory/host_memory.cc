#include "engine/memory/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/control_group.h"

namespace heddle::engine {
namespace {

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
  const base::ControlGroup group = base::ReadControlGroup(root);
  memory.total_bytes = std::min(memory.total_bytes, group.memory_limit);
  memory.available_bytes = std::min(memory.available_bytes, group.memory_available);
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
