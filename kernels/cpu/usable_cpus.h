// The CPUs that this process may compute on: those of its affinity, which of them share a core, and
// how many its control group allows. More threads would wait for each other: siblings share the
// units that kernels keep busy, and an exhausted quota stops all threads until its period is over.
// Sources: sched_getaffinity(2), cgroups(7), the kernel's Documentation/admin-guide/cgroup-v2.rst
// and sysfs-devices-system-cpu.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace heddle::kernels::cpu {

struct UsableCpus {
  std::vector<int> ids;   // never empty; one CPU of each core, then the cores' others
  int32_t num_cores = 1;  // cores among them, up to the quota
  int32_t num_cpus = 1;   // CPUs, up to the quota
};

// Reads files below `root`; what cannot be read limits nothing. REQUIRES: `allowed` is not empty.
UsableCpus FindUsableCpus(std::span<const int> allowed, const std::filesystem::path& root);

// The CPUs of this process at present.
UsableCpus FindUsableCpus();

}  // namespace heddle::kernels::cpu
