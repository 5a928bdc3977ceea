#include "kernels/cpu/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "base/control_group.h"

namespace heddle::kernels::cpu {
namespace {

namespace fs = std::filesystem;

int64_t ReadNumber(const fs::path& path, int64_t fallback) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? value : fallback;
}

// The first CPU in the list of a CPU's siblings, such as "2,10" or "4-5"; itself without a list.
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
  const int64_t quota = base::ReadControlGroup(root).cpus;
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
