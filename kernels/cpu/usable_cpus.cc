#include "kernels/cpu/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <string>

namespace heddle::kernels::cpu {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

int64_t ReadNumber(const fs::path& path, int64_t fallback) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? value : fallback;
}

// Whole CPUs that a quota is worth; kUnlimited for none ("max", -1) or numbers that make no sense.
int64_t CpusOf(int64_t quota_us, int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return kUnlimited;
  return std::max<int64_t>(1, quota_us / period_us);
}

int64_t QuotaOfGroup(const fs::path& folder, bool is_v2) {
  if (!is_v2) {
    return CpusOf(ReadNumber(folder / "cpu.cfs_quota_us", -1),
                  ReadNumber(folder / "cpu.cfs_period_us", -1));
  }
  std::ifstream in(folder / "cpu.max");
  int64_t quota_us = 0, period_us = 0;
  return in >> quota_us >> period_us ? CpusOf(quota_us, period_us) : kUnlimited;
}

// The least of a group's and those that it is in. Inside of a container its path may be that of the
// host, where nothing is; the mount's own folder is the container's then.
int64_t QuotaAlong(const fs::path& mount, const fs::path& group, bool is_v2) {
  int64_t least = QuotaOfGroup(mount, is_v2);
  fs::path folder = mount;
  for (const fs::path& part : group.relative_path()) {
    if (part == "..") return least;
    folder /= part;
    least = std::min(least, QuotaOfGroup(folder, is_v2));
  }
  return least;
}

bool NamesCpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

// Lines of /proc/self/cgroup: "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
int64_t Quota(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  int64_t least = kUnlimited;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) least = std::min(least, QuotaAlong(mount, group, /*is_v2=*/true));
    if (NamesCpu(controllers)) {
      least = std::min(least, QuotaAlong(mount / "cpu", group, /*is_v2=*/false));
    }
  }
  return least;
}

// The first CPU of the list of a CPU's siblings, such as "2,10" or "4-5"; itself if there is none.
int CoreOf(const fs::path& root, int cpu) {
  const fs::path folder = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu));
  return static_cast<int>(ReadNumber(folder / "topology/thread_siblings_list", cpu));
}

}  // namespace

UsableCpus FindUsableCpus(std::span<const int> allowed, const fs::path& root) {
  UsableCpus usable;
  std::set<int> cores;
  std::vector<int> siblings;
  for (const int cpu : allowed) {
    (cores.insert(CoreOf(root, cpu)).second ? usable.ids : siblings).push_back(cpu);
  }
  usable.ids.insert(usable.ids.end(), siblings.begin(), siblings.end());
  const int64_t quota = Quota(root);
  usable.num_cores = static_cast<int32_t>(std::min<int64_t>(std::ssize(cores), quota));
  usable.num_cpus = static_cast<int32_t>(std::min<int64_t>(std::ssize(allowed), quota));
  return usable;
}

UsableCpus FindUsableCpus() {
  std::vector<int> allowed;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) allowed.push_back(i);
    }
  }
  if (allowed.empty()) allowed.push_back(0);
  return FindUsableCpus(allowed, "/");
}

}  // namespace heddle::kernels::cpu
