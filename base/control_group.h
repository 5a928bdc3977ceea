// The memory and CPU time that this process's control groups allow. Only this file reads them; code
// that bounds memory or threads asks here.
//
// A limit may be set on the process's own group (a container, systemd's MemoryMax=) or on any group
// around it, so the least along the path counts, in version 1, version 2 or both at once.
// Sources: cgroups(7), proc_pid_mountinfo(5), the kernel's Documentation/admin-guide/cgroup-v2.rst
// and cgroup-v1/memory.rst.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace heddle::base {

struct ControlGroup {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  // Bytes: the least of memory.max and memory.high (memory.limit_in_bytes) along the path, and of
  // what each of those groups has left. File pages that were not used lately do not count as taken,
  // because the kernel drops them before it lacks memory.
  int64_t memory_limit = kUnlimited;
  int64_t memory_available = kUnlimited;
  // Whole CPUs that the least quota along the path allows, at least 1.
  int64_t cpus = kUnlimited;
};

// Reads proc/self/cgroup, proc/self/mountinfo and the groups' files, all below `root`. Data that
// cannot be read, or makes no sense, limits nothing. Costs some ten small reads.
ControlGroup ReadControlGroup(const std::filesystem::path& root = "/");

}  // namespace heddle::base
