#include "engine/model/rank_binding.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace heddle::engine {

absl::Status BindThisThread(std::span<const int> cpus) {
  if (cpus.empty()) return absl::OkStatus();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--rank-cpus: this process cannot run on processors ",
                     absl::StrJoin(cpus, ","), ": ", std::strerror(errno)));
  }
  // AllocateHost spreads memory over all nodes unless a thread has a policy of its own. Where the
  // system does not allow one, memory stays spread, which is slower and no error.
  static_cast<void>(syscall(SYS_set_mempolicy, MPOL_LOCAL, nullptr, 0));
  return absl::OkStatus();
}

}  // namespace heddle::engine
